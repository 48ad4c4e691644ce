"""train the missing runs of an experiment's sweep"""

import argparse
import fnmatch
import importlib.util
import signal
import sys
from pathlib import Path

from rich.console import Console

from rope_lab.sweep import Run, run_sweep

SCALES = ("tiny", "paper")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `rope-lab sweep`."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="an experiment's folder, with its sweep.py")
    parser.add_argument("--scale", choices=SCALES, default="tiny", help="tiny: a laptop; paper: a pod")
    parser.add_argument("--workdir", metavar="DIR", help="where the run folders go; runs/EXPERIMENT by default")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="runs whose names match, '*_seed0' say, and those they start from")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time, each on its share of the cores")


def run(args: argparse.Namespace) -> int:
    """Runs what is missing."""
    if args.jobs < 1:
        raise ValueError(f"--jobs={args.jobs} must be at least 1")
    folder = Path(args.experiment)
    runs = open_sweep(folder, args.scale)
    chosen = select(runs, args.only)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the runs under way are told as well, and save
    workdir = Path(args.workdir or Path("runs") / folder.resolve().name)
    failed = run_sweep(chosen, workdir, args.jobs, Console())
    return 1 if failed else 0


def open_sweep(folder: Path, scale: str) -> list[Run]:
    """The runs that an experiment's `sweep.py` yields.

    Raises:
      ValueError: if there is no such file, or it has no runs at this scale.
    """
    file = folder / "sweep.py"
    spec = importlib.util.spec_from_file_location("sweep", file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"{str(folder)!r} holds no sweep.py; name an experiment's folder, such as experiments/02_pretrain_base")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    runs = module.sweep(scale)
    if not runs:
        raise ValueError(f"{file} has no runs at --scale={scale}")
    return runs


def select(runs: list[Run], pattern: str) -> list[Run]:
    """The runs whose names match, and those they start from, in the sweep's order.

    Raises:
      ValueError: if none matches.
    """
    by_name = {run.name: run for run in runs}
    chosen = set(fnmatch.filter(by_name, pattern))
    if not chosen:
        raise ValueError(f"--only={pattern!r} matches no run; they are {', '.join(by_name)}")
    frontier = list(chosen)
    while frontier:
        start = by_name[frontier.pop()].start
        if start is not None and start not in chosen:
            chosen.add(start)
            frontier.append(start)
    return [run for run in runs if run.name in chosen]
