"""What an experiment's README says came out is what its committed tables say, and the tables are read right."""

import csv
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rope_lab.runs import ProbeResult
from rope_lab.tables import read_table

EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"
PLOTS = [path for path in sorted(EXPERIMENTS.glob("*/plot.py")) if "def verdict(" in path.read_text()]
TO_COME = "VERDICT"  # alone on a line of the README: nothing has been run


def opened(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"plot_of_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problems(readme: str, lines: list[str] | None) -> list[str]:
    """What is wrong with a README, given what the verdict of the committed table says; None: there is no table."""
    said = readme.splitlines()
    if lines is None:
        return [] if TO_COME in said else [f"has no {TO_COME} line though there are no results"]
    missing = [f"lacks: - {line}." for line in lines if f"- {line}." not in said]
    return missing + ([f"still says {TO_COME}"] if TO_COME in said else [])


@pytest.mark.parametrize("plot", PLOTS, ids=lambda path: path.parent.name)
def test_the_readme_says_what_the_committed_table_says(plot: Path):
    module, table = opened(plot), plot.parent / "results" / "steps.csv"
    lines = module.verdict(read_table(table)) if table.exists() else None
    assert problems((plot.parent / "README.md").read_text(), lines) == []


def test_a_readme_that_says_something_else_is_noticed():
    assert problems("# 05\n\n- It holds: 3 of 3 (a/b).\n", ["It holds: 3 of 3 (a/b)"]) == []
    assert problems("# 05\n\n- It holds: 3 of 3 (a/b).\n", ["It holds: 2 of 3 (a/b)"]) == ["lacks: - It holds: 2 of 3 (a/b)."]
    assert problems("VERDICT\n- It holds: 3 of 3.\n", ["It holds: 3 of 3"]) == ["still says VERDICT"]
    assert problems("- It holds: 3 of 3.\n", None) == ["has no VERDICT line though there are no results"]
    assert problems("VERDICT\n", None) == []


# --- 05: a table made up to be read ------------------------------------------------------------------------------------------------------


def row(
    method: str, density: str, seed: int, step: int, *, negative: int, rest: int, least: float = 0.9, loss: float = 2.0
) -> dict[str, Any]:
    """Of 100 questions beyond the start's context where B_m < 0, and 300 elsewhere, how many were answered right."""
    return {
        "run": f"{method}_{density}_seed{seed}",
        "method": method,
        "density": density,
        "seed": seed,
        "step": step,
        "effective_length_tokens": 512 if negative + rest > 200 else 96,
        "accuracy": 0.5,
        "least_accuracy": least,
        "text_loss_nats": loss,
        "beyond_negative_questions": 0 if method in ("method1", "start") else 100,
        "beyond_negative_right": negative,
        "beyond_not_negative_questions": 300,
        "beyond_not_negative_right": rest,
    }


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Seed 0 as the paper would have it, seed 1 without a difference; the denser version has seed 0 alone."""
    rows = []
    for seed, density in ((0, "sparse"), (1, "sparse"), (0, "dense")):
        fails = seed == 0
        rows += [
            row("start", "", seed, 1000, negative=0, rest=0, least=0.97 if fails else 0.94),
            row("method1", density, seed, 50, negative=0, rest=150),
            row("method1", density, seed, 300, negative=0, rest=297),
            row("method2", density, seed, 50, negative=10, rest=150),
            row("method2", density, seed, 300, negative=20 if fails else 98, rest=290, loss=2.04 if fails else 2.06),
            row("pi", density, seed, 50, negative=50, rest=150),
            row("pi", density, seed, 300, negative=97, rest=291),
            row("unchanged", density, seed, 50, negative=10, rest=30),
            row("unchanged", density, seed, 300, negative=10, rest=30),
        ]
    with (tmp_path / "steps.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path / "steps.csv"


def test_the_verdict_of_method1_and_method2_is_read_from_the_table(table: Path):
    module = opened(EXPERIMENTS / "05_method1_method2" / "plot.py")
    found = module.verdict(read_table(table))
    sparse, dense = "With up to 24 records a row", "With up to 48 records a row"
    assert found[0] == "The start reaches 0.95 at every distance up to 128: 1 of 2 (least of the buckets, by seed: 0.97/0.94)"
    assert [line for line in found[1:] if line.startswith(sparse)] == [
        f"{sparse}, beyond 128 tokens: Method 2 retrieves worse than Method 1 by more than 0.05: 1 of 2 "
        "(0.78/0.97 against 0.99/0.99; effective length 512/512 against 512/512)",
        f"{sparse}, beyond 128 tokens: PI retrieves worse than Method 1 by more than 0.05: 0 of 2 "
        "(0.97/0.97 against 0.99/0.99; effective length 512/512 against 512/512)",
        f"{sparse}, beyond 128 tokens: The unchanged base retrieves worse than Method 1 by more than 0.05: 2 of 2 "
        "(0.10/0.10 against 0.99/0.99; effective length 96/96 against 512/512)",
        f"{sparse}, beyond 128 tokens: Method 2 retrieves worse than Method 1 by more than 0.05 after 50 steps: 2 of 2 "
        "(0.40/0.40 against 0.50/0.50; PI 0.50/0.50)",
        f"{sparse}, beyond 128 tokens: Method 2 retrieves worse where B_m < 0 than elsewhere by more than 0.05 in the end: 1 of 2 "
        "(0.20/0.98 against 0.97/0.97)",
        f"{sparse}, beyond 128 tokens: PI retrieves worse where B_m < 0 than elsewhere by more than 0.05 in the end: 0 of 2 "
        "(0.97/0.97 against 0.97/0.97)",
        f"{sparse}, beyond 128 tokens: Method 2 retrieves worse where B_m < 0 than elsewhere by more than 0.05 after 50 steps: 2 of 2 "
        "(0.10/0.10 against 0.50/0.50)",
        f"{sparse}, beyond 128 tokens: PI retrieves worse where B_m < 0 than elsewhere by more than 0.05 after 50 steps: 0 of 2 "
        "(0.50/0.50 against 0.50/0.50)",
        f"{sparse}: Method 2's text loss is within 0.05 nats of Method 1's: 1 of 2 "
        "(2.040/2.060 against 2.000/2.000; PI 2.000/2.000; base unchanged 2.000/2.000)",
    ]
    assert [line.partition(": 1 of 1")[1] != "" for line in found if line.startswith(dense)] == [
        *(True, False, True),  # Method 2, PI and the unchanged base, against Method 1
        True,
        *(True, False, True, False),
        True,
    ]


def test_method2_of_the_sweep_gives_the_paper_its_best_chance():
    """Of the boundary pairs without an angle that the start never saw, the one with most distances of B_m < 0; Method 1 has none."""
    module = opened(EXPERIMENTS / "05_method1_method2" / "plot.py")
    tables = module.theory()
    bounds = {line["encoding"]: line for line in tables["bounds"]}
    inside = [line for line in tables["boundary_pairs"] if line["pairs_out_of_distribution"] == 0]
    assert bounds["method2"]["negative_beyond"] == max(line["negative_beyond"] for line in inside) == 147
    assert [bounds[name]["pairs_out_of_distribution"] for name in module.COLORS] == [0, 0, 0, 6]
    assert [bounds[name]["negative_beyond"] for name in module.COLORS] == [0, 147, 154, 242]
    below = [line["distance_tokens"] for line in tables["gaps"] if line["method2"] < 0]
    assert len([distance for distance in below if distance > 128]) == 147
    assert below[0] == bounds["method2"]["l_theta_tokens"] + 1 == 178


def test_questions_are_split_by_the_sign_of_b_m_beyond_the_starts_context_alone():
    module = opened(EXPERIMENTS / "05_method1_method2" / "plot.py")
    distances, right = np.array([40, 128, 129, 178, 200, 474, 512]), np.array([True, True, True, True, False, False, True])
    negative = np.isin(np.arange(513), [40, 128, 178, 474])
    result = ProbeResult(step=1, scalars={}, arrays={"distance_tokens": distances, "correct": right})
    assert module.beyond(result, negative) == {
        "beyond_negative_questions": 2,  # 178 and 474
        "beyond_negative_right": 1,
        "beyond_not_negative_questions": 3,  # 129, 200 and 512
        "beyond_not_negative_right": 2,
    }
