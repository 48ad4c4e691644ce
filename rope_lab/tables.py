"""An experiment's tables: rows are dicts, kept in csv files, one row a probed step or a distance bucket of one."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rope_lab.runs import ProbeResult

Row = dict[str, Any]


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Writes rows, all with the keys of the first, as csv."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: Path) -> list[Row]:
    """The rows of a csv file; a column whose every value is a number comes back as numbers, any other as text."""
    with path.open(newline="") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for key in rows[0] if rows else ():
        try:
            numbers = [float(row[key]) for row in rows]
        except ValueError:
            continue
        for row, number in zip(rows, numbers, strict=True):
            row[key] = number
    return rows


def final_rows(rows: Iterable[Row]) -> list[Row]:
    """Each run's last row (key `run`); rows come in the order of their steps."""
    return list({row["run"]: row for row in rows}.values())


def bucket_rows(run: str, result: ProbeResult) -> list[Row]:
    """What `kv_by_distance` found at one step of a run, a row a distance bucket."""
    arrays = (result.arrays[name] for name in ("edges_tokens", "accuracy", "count"))
    return [
        {
            "run": run,
            "step": result.step,
            "distance_below_tokens": int(edge),
            "accuracy": round(float(accuracy), 4),
            "questions": int(count),
        }
        for edge, accuracy, count in zip(*arrays, strict=True)
    ]


def accuracies(rows: Iterable[Row], buckets: Iterable[Row]) -> tuple[list[int], list[list[float]]]:
    """Accuracy by distance of some runs at one step each.

    Args:
      rows: the runs and steps wanted, by `run` and `step`.
      buckets: from `bucket_rows`, of any runs and steps.

    Returns:
      The buckets' upper edges (tokens), and for each run its accuracies; both empty where no run is there.
    """
    wanted = {(row["run"], row["step"]) for row in rows}
    by_run: dict[str, dict[int, float]] = {}
    for bucket in buckets:
        if (bucket["run"], bucket["step"]) in wanted:
            by_run.setdefault(bucket["run"], {})[bucket["distance_below_tokens"]] = bucket["accuracy"]
    edges = sorted(set().union(*by_run.values()))
    return edges, [[run[edge] for edge in edges] for run in by_run.values()]
