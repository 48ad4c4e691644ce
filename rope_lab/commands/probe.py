"""probe a run's checkpoint: perplexity by position, retrieval by distance, effective context length"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rope_lab.assembly import assemble, load_params, past_the_wall
from rope_lab.config import resolve
from rope_lab.runs import open_config
from rope_lab.train.loop import save_probe_arrays

TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `rope-lab probe`."""
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder")
    parser.add_argument("--step", type=int, metavar="N", help="which checkpoint; the newest by default")


def run(args: argparse.Namespace) -> int:
    """Probes one checkpoint, prints what was found, and keeps the arrays in the run folder."""
    assembly = assemble(resolve(open_config(args.workdir)))
    folder = Path(args.workdir)
    params, step = load_params(folder, args.step, assembly.trainable)
    table = Table("probe", "metric", "value", title=f"{args.workdir}, step {step}")
    for name, probe in assembly.probes.items():
        with past_the_wall(f"probe {name}"):
            scalars, arrays = probe(params)
        save_probe_arrays(folder, name, step, arrays)
        for metric, value in scalars.items():
            table.add_row(name, metric, f"{value:,.4g}")
    Console().print(table)
    return 0
