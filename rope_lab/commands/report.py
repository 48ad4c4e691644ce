"""what a run trains on: how often each relative distance and each position occurs in its rows

From the token stores' offsets alone: no model is built and no token is read.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from rope_lab.config import Config, load, resolve
from rope_lab.data.distances import PLANTED, TrainedDistances, octaves, trained_distances
from rope_lab.data.pipeline import Pipeline, open_pipeline, stages
from rope_lab.runs import open_config

TAKES_OVERRIDES = True

COLUMNS = ("tokens", "pairs_at_distance", "pairs_if_one_document", "trained_at_position", "trained_if_one_document")
"""Of the CSV file: a distance or position, and how often it occurs over the run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `rope-lab report`."""
    parser.add_argument("what", choices=tuple(_REPORTS), help="data: relative distances and positions as the run's packing trains them")
    parser.add_argument("--workdir", metavar="DIR", help="a run folder")
    parser.add_argument("--config", metavar="FILE", help="a config file instead; --config.SECTION.FIELD=VALUE overrides its fields")
    parser.add_argument("--out", metavar="DIR", help="write trained_distances.csv and trained_distances.png there")


def run(args: argparse.Namespace) -> int:
    """Prints one report, and writes its files where asked."""
    return _REPORTS[args.what](args)


def _data(args: argparse.Namespace) -> int:
    config = _config(args)
    plan = stages(config.train.curriculum, config.train.tokens_per_step)
    pipeline = open_pipeline(config.data)
    for stage in plan:
        pipeline.check(stage)
    found = trained_distances(pipeline, plan)
    console = Console()
    tables = [
        _sources_table(pipeline, found),
        _octaves_table("distance", "query-key pairs", found.total.pairs, found.one_document.pairs),
        _octaves_table("position", "tokens", found.total.tokens, found.one_document.tokens),
    ]
    for part in (*tables, *_sentences(config, found)):
        console.print(part, soft_wrap=isinstance(part, str), highlight=False)
    if args.out is not None:
        folder = Path(args.out)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, found)
        console.print(f"written: {folder}/trained_distances.csv and .png", soft_wrap=True, highlight=False)
    return 0


def _config(args: argparse.Namespace) -> Config:
    if (args.workdir is None) == (args.config is None):
        raise ValueError("give either --workdir=DIR or --config=FILE")
    if args.config is not None:
        return resolve(load(args.config, args.overrides))
    if args.overrides:
        raise ValueError(f"{' '.join(args.overrides)!r} is not understood; only --config=FILE takes --config. overrides")
    return resolve(open_config(args.workdir))


def _far(pairs: np.ndarray) -> float:
    """Pairs at distances beyond half the longest context."""
    return float(pairs[len(pairs) // 2 + 1 :].sum())


def _sources_table(pipeline: Pipeline, found: TrainedDistances) -> Table:
    half = len(found.total.pairs) // 2
    table = Table("source", title=f"mixture; far: distances beyond {half:,} tokens, against one-document rows")
    for name in ("rows", "documents", "mean tokens", "far"):
        table.add_column(name, justify="right")
    one_document = _far(found.one_document.pairs) / found.one_document.rows
    for name, counts in found.parts.items():
        info = None if name == PLANTED else pipeline.mixture[name][0].info
        about = ("", "") if info is None else (f"{info.num_documents:,}", f"{info.num_tokens / info.num_documents:,.0f}")
        far = "" if counts.rows == 0 else _percent(_far(counts.pairs) / counts.rows, one_document)
        table.add_row(name, _percent(counts.rows, found.total.rows), *about, far)
    return table


def _octaves_table(place: str, what: str, ours: np.ndarray, one_document: np.ndarray) -> Table:
    """Octaves of distance or position: their share of what is trained, that of one-document rows, and one against the other."""
    table = Table(f"{place} (tokens)", title=f"{what} by {place}")
    for name in ("share", "one document", "against it"):
        table.add_column(name, justify="right")
    for first, last in [(0, 0), *octaves(len(ours))]:
        mine, theirs = ours[first : last + 1].sum(), one_document[first : last + 1].sum()
        shares = (_percent(mine, ours.sum()), _percent(theirs, one_document.sum()), _percent(mine, theirs))
        table.add_row(f"{first:,}" if first == last else f"{first:,} - {last:,}", *shares)
    return table


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3g} %"


def _sentences(config: Config, found: TrainedDistances) -> list[str]:
    pairs, whole = found.total.pairs, found.one_document.pairs
    return [
        f"{found.total.rows:,.0f} rows of up to {len(pairs):,} tokens; "
        f"attention {'crosses' if config.data.attend_across_documents else 'stays within'} documents; "
        f"positions {'restart with each document' if config.data.restart_positions else 'run through the row'}",
        f"distances beyond {len(pairs) // 2:,} tokens: {_percent(_far(pairs), pairs.sum())} of pairs, "
        f"{_percent(_far(whole), whole.sum())} if every row were one document; trained {_far(pairs) / _far(whole):.3g} times as often",
    ]


def _write(folder: Path, found: TrainedDistances) -> None:
    from rope_lab.plotting import trained_distances_picture

    total, whole = found.total, found.one_document
    rows = np.column_stack([np.arange(len(total.pairs)), total.pairs, whole.pairs, total.tokens, whole.tokens])
    formats = ["%d", *["%.12g"] * 4]
    np.savetxt(folder / "trained_distances.csv", rows, fmt=formats, delimiter=",", header=",".join(COLUMNS), comments="")
    trained_distances_picture((total.pairs, whole.pairs), (total.tokens, whole.tokens), folder / "trained_distances.png")


_REPORTS: dict[str, Callable[[argparse.Namespace], int]] = {"data": _data}
