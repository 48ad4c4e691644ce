"""Two models that differ in the rotary base alone, and what each can retrieve. Run by `make demo`; see README.md beside this file."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from rope_lab.commands.train import train_from_config
from rope_lab.config import load
from rope_lab.metrics import read_metrics
from rope_lab.plotting import accuracy_by_distance, loss_by_position, mark_bounds
from rope_lab.rotary import RoPE
from rope_lab.runs import probe_results
from rope_lab.tables import write_table
from rope_lab.theory.decay import context_bound, quarter_period

HEAD_DIM, LENGTH = 32, 256


class Run(NamedTuple):
    """One run of the demo: its folder's name, how it is drawn, and the config overrides."""

    name: str
    title: str
    base: float
    color: str
    style: str
    overrides: tuple[str, ...]


def plan(workdir: Path, seed: int) -> list[Run]:
    """The paired runs, and the continuation of the first at the second's base."""
    seeds = (f"--config.train.seed={seed}", f"--config.data.seed={seed}")
    continued = (
        f"--config.init.from={workdir / 'base_1e2'}",
        "--config.train.curriculum=((256, 400),)",
        f"--config.train.seed={seed}",
        f"--config.data.seed={seed + 1000}",  # fresh text and records
    )
    return [
        Run("base_1e2", "base 1e2", 1e2, "tab:red", "o-", ("--config.rotary.base=1e2", *seeds)),
        Run("base_1e6", "base 1e6", 1e6, "tab:blue", "s-", ("--config.rotary.base=1e6", *seeds)),
        Run("base_1e2_to_1e6", "1e2, then 400 steps at 1e6", 1e6, "tab:green", "o--", ("--config.rotary.base=1e6", *continued)),
    ]


def require_paired(first: Path, second: Path) -> int:
    """Checks that two runs started from the same parameters and saw the same batches; returns how many."""
    a, b = ([line.get("init/parameters_fingerprint", line.get("data/batch_hash")) for line in read_metrics(run)] for run in (first, second))
    if a != b:
        raise RuntimeError(f"{first} and {second} are not paired: their initial parameters or batches differ")
    return sum(value is not None for value in a) - 1


def draw(runs: list[Run], workdir: Path, picture: Path) -> None:
    """Loss by position beside accuracy by distance."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for run in runs:
        losses = probe_results(workdir / run.name, "perplexity")[-1].arrays["loss_by_position_nats"]
        loss_by_position(left, losses, label=run.title, color=run.color)
        arrays = probe_results(workdir / run.name, "kv_by_distance")[-1].arrays
        accuracy_by_distance(right, arrays["edges_tokens"], arrays["accuracy"], label=run.title, color=run.color, style=run.style)
    mark_bounds(right, RoPE(base=1e2), HEAD_DIM, LENGTH, color="tab:red")
    right.axhline(1 / 16, lw=0.8, color="gray")
    right.annotate("chance", (4, 1 / 16), fontsize=8, color="gray", va="bottom")
    left.set_title("Perplexity does not tell them apart")
    right.set_title("Retrieval does")
    left.set_ylim(bottom=0)
    left.legend(loc="lower left")
    figure.savefig(picture, dpi=150)


def figures(run: Run, workdir: Path) -> dict[str, Any]:
    """What the picture shows of one run, as numbers."""
    theta = RoPE(base=run.base).spectrum(HEAD_DIM, LENGTH).theta
    text, retrieval = (probe_results(workdir / run.name, probe)[-1].scalars for probe in ("perplexity", "kv_by_distance"))
    return {
        "run": run.title,
        "L_theta (tokens)": context_bound(theta),
        "slowest quarter period (tokens)": round(quarter_period(theta)),
        "held-out text loss (nats)": round(text["loss_nats"], 4),
        "effective length (tokens)": retrieval["effective_length_tokens"],
        "effective length, 95 % from": retrieval["effective_length_low_tokens"],
        "effective length, 95 % to": retrieval["effective_length_high_tokens"],
        "retrieval accuracy, mean": round(retrieval["accuracy"], 4),
        "retrieval accuracy at 192-256": round(retrieval["accuracy_farthest"], 4),
    }


def report(runs: list[Run], workdir: Path, seed: int, console: Console) -> None:
    """Prints the figures, and keeps them in `demo.csv`."""
    rows = [figures(run, workdir) for run in runs]
    table = Table("", *(run.title for run in runs), title=f"context {LENGTH}, head_dim {HEAD_DIM}")
    for name in list(rows[0])[1:]:
        table.add_row(name, *(f"{row[name]:,}" for row in rows))
    console.print(table)
    write_table(workdir / "demo.csv", [{"seed": seed} | row for row in rows])


def main() -> int:
    """Trains what is missing, checks the pairing, prints the table and names the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, default=Path("runs/demo"), help="where the runs and the picture go")
    parser.add_argument("--seed", type=int, default=0, help="of initial parameters and data")
    args = parser.parse_args()
    start = time.perf_counter()
    runs = plan(args.workdir, args.seed)
    console = Console()
    for number, run in enumerate(runs, 1):
        console.print(f"[bold]{number}/{len(runs)}  {run.title}[/bold]")
        train_from_config(load("configs/tiny.py", list(run.overrides)), str(args.workdir / run.name))
    steps = require_paired(args.workdir / runs[0].name, args.workdir / runs[1].name)
    picture = args.workdir / "demo.png"
    draw(runs, args.workdir, picture)
    report(runs, args.workdir, args.seed, console)
    console.print(
        f"{runs[0].title} and {runs[1].title} started from the same parameters and saw the same {steps} batches (hashes compared)."
    )
    console.print(f"{time.perf_counter() - start:.0f} s. The picture: {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
