"""`rope-lab report data` as a user meets it: tables, files whose numbers are the counts, and one line on bad input."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from rope_lab.__main__ import main
from rope_lab.config import load
from rope_lab.data.store import write_store
from rope_lab.data.tokenizer import BytesTokenizer
from rope_lab.runs import open_run

CONFIG = "--config=configs/tiny.py"
FIELDS = (
    "--config.train.curriculum=((16, 2), (64, 8))",
    "--config.train.tokens_per_step=128",
    "--config.data.retrieval.weight=0",
    "--config.data.restart_positions=true",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source of documents of eight tokens, which part the rows evenly, and one of a single document."""
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for source, lengths in {"short": [7] * 32 + [0], "whole": [256]}.items():
        write_store(path / source, [rng.integers(0, 256, n) for n in lengths], source=source, tokenizer=BytesTokenizer())
    return path


def words(text: str) -> list[list[str]]:
    """The cells of the tables' lines."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]


def test_a_starved_mixture(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Half of the rows are one document, half are documents of eight tokens: far pairs come half as often, by hand."""
    out = tmp_path / "new" / "folder"
    weights = "--config.data.weights=(('short', 1), ('whole', 1))"
    assert main(["report", "data", CONFIG, f"--config.data.path={folder}", weights, *FIELDS, f"--out={out}"]) == 0
    text = capsys.readouterr().out
    cells = words(text)
    assert ["short", "50 %", "33", "8", "0 %"] in cells
    assert ["whole", "50 %", "1", "257", "100 %"] in cells
    rows = {16: 16, 64: 16}
    whole = [sum(count * max(length - d, 0) for length, count in rows.items()) for d in range(64)]
    pairs = [one / 2 + sum(count / 2 * length / 8 * max(8 - d, 0) for length, count in rows.items()) for d, one in enumerate(whole)]
    positions = [8 * (p < 16) + 8 + (16 / 2 * (2 + 8) if p < 8 else 0) for p in range(64)]
    table = np.genfromtxt(out / "trained_distances.csv", delimiter=",", names=True)
    assert table.dtype.names == ("tokens", "pairs_at_distance", "pairs_if_one_document", "trained_at_position", "trained_if_one_document")
    assert table["tokens"].tolist() == list(range(64))
    assert table["pairs_at_distance"] == pytest.approx(np.array(pairs))
    assert table["pairs_if_one_document"].tolist() == whole
    assert table["trained_at_position"] == pytest.approx(np.array(positions))
    assert table["trained_if_one_document"].tolist() == [16 * (p < 16) + 16 for p in range(64)]

    def share(values: Sequence[float], first: int, last: int, of: float) -> str:
        return f"{100 * sum(values[first : last + 1]) / of:.3g} %"

    for first, last in ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63)):
        name = str(first) if first == last else f"{first} - {last}"
        expected = [
            share(pairs, first, last, sum(pairs)),
            share(whole, first, last, sum(whole)),
            share(pairs, first, last, sum(whole[first : last + 1])),
        ]
        assert [name, *expected] in cells
    assert ["32 - 63", share(pairs, 32, 63, sum(pairs)), share(whole, 32, 63, sum(whole)), "50 %"] in cells
    assert "32 rows of up to 64 tokens; attention stays within documents; positions restart with each document" in text
    far = [share(values, 33, 63, sum(values)) for values in (pairs, whole)]
    assert f"distances beyond 32 tokens: {far[0]} of pairs, {far[1]} if every row were one document; trained 0.5 times as often" in text
    picture = matplotlib.image.imread(out / "trained_distances.png")
    assert picture.shape[1] > picture.shape[0] > 100
    assert np.ptp(picture) > 0


def test_a_run_folder_tells_what_its_config_does(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    fields = [f"--config.data.path={folder}", *FIELDS, "--config.data.attend_across_documents=true"]
    assert main(["report", "data", CONFIG, *fields]) == 0
    expected = capsys.readouterr().out
    run = open_run(str(tmp_path / "run"), load("configs/tiny.py", fields))
    before = sorted(path.name for path in run.iterdir())
    assert main(["report", "data", f"--workdir={run}"]) == 0
    assert capsys.readouterr().out == expected
    assert "attention crosses documents" in expected
    assert "trained 1 times as often" in expected
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data"], "give either --workdir=DIR or --config=FILE"),
        (["data", CONFIG, "--workdir=nowhere"], "give either --workdir=DIR or --config=FILE"),
        (["data", "--workdir=nowhere", "--config.data.seed=1"], "'--config.data.seed=1' is not understood; only --config=FILE takes"),
        (["data", "--workdir=nowhere"], "workdir 'nowhere' holds no run (no config.json)"),
        (["data", CONFIG, "--config.data.path=nowhere"], "folder='nowhere' holds no token store"),
        (["dada", CONFIG], "argument what: invalid choice: 'dada'"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture):
    assert main(["report", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"rope-lab report: {message}")
    assert told.err.count("\n") == 1


def test_a_source_too_short_for_a_row_is_told(folder: Path, capsys: pytest.CaptureFixture):
    assert main(["report", "data", CONFIG, f"--config.data.path={folder}", "--config.train.curriculum=((512, 1),)"]) == 2
    assert capsys.readouterr().err == "rope-lab report: source 'short' has 257 tokens, too few for one row of 512 and its target\n"
