"""How often each relative distance and each position is trained on: exact counts from where documents begin, no token read.

A row of T tokens is cut where documents begin, and a query sees the keys of its own piece: a piece of s tokens gives s - d pairs at
distance d. Where attention crosses documents the row is one piece, and so is a row with retrieval records in it.
"""

from typing import NamedTuple

import numpy as np

from rope_lab.data.pipeline import Pipeline, Stage

PLANTED = "retrieval rows"


class Counts(NamedTuple):
    """What a number of rows train, expected over the shuffle.

    Attributes:
      rows: how many, all stages together.
      pairs: float64 `(L,)`: pairs of a query and the key d tokens before it, d = 0 .. L - 1.
      tokens: float64 `(L,)`: tokens at position p.
    """

    rows: float
    pairs: np.ndarray
    tokens: np.ndarray


class TrainedDistances(NamedTuple):
    """What a run trains.

    Attributes:
      parts: by source, and `PLANTED` where the mixture has such rows.
      total: all of them.
      one_document: the same stages, had every row been one document.
    """

    parts: dict[str, Counts]
    total: Counts
    one_document: Counts


def pieces(offsets: np.ndarray, length: int) -> np.ndarray:
    """How many pieces of each size the rows of a store are cut into.

    Args:
      offsets: int64 `(documents + 1,)`, where documents begin, and the end.
      length: T; row r is tokens r T .. (r + 1) T - 1 and needs one more token, its last target.

    Returns:
      int64 `(T + 1,)`: pieces of s tokens, s = 0 .. T.
    """
    rows = (int(offsets[-1]) - 1) // length
    inside = offsets[offsets < rows * length]
    cuts = np.union1d(inside, np.arange(rows + 1) * length)
    return np.bincount(np.diff(cuts), minlength=length + 1)


def longer_pieces(counts: np.ndarray) -> np.ndarray:
    """Pieces of more than k tokens, k = 0 .. T - 1: the tokens at position k when positions restart with each piece."""
    return np.cumsum(counts[:0:-1])[::-1]


def pairs_by_distance(counts: np.ndarray) -> np.ndarray:
    """Pairs at distance d = 0 .. T - 1: the sum over pieces of `max(s - d, 0)`."""
    return np.cumsum(longer_pieces(counts)[::-1])[::-1]


def trained_distances(pipeline: Pipeline, plan: tuple[Stage, ...]) -> TrainedDistances:
    """Counts pairs and positions over a run's stages, in the shares of its mixture.

    Every row of a source counts the same, as it does over whole epochs; every query counts, whatever its target weighs in the loss.

    Args:
      pipeline: the run's data.
      plan: its stages, from `stages`.
    """
    longest = max(stage.length for stage in plan)
    config, share = pipeline.config, pipeline.config.retrieval.weight
    counts: dict[str, Counts] = {}

    def add(name: str, rows: float, pairs: np.ndarray, tokens: np.ndarray) -> None:
        old = counts.get(name, Counts(0.0, np.zeros(longest), np.zeros(longest)))
        room = (0, longest - len(pairs))
        counts[name] = Counts(old.rows + rows, old.pairs + np.pad(rows * pairs, room), old.tokens + np.pad(rows * tokens, room))

    for stage in plan:
        rows = stage.rows * stage.num_steps
        whole = np.arange(stage.length, 0, -1.0), np.ones(stage.length)
        add("", rows, *whole)
        for name, (store, weight) in pipeline.mixture.items():
            cut = pieces(store.offsets, stage.length)
            per_row = 1 / ((store.info.num_tokens - 1) // stage.length)
            pairs = whole[0] if config.attend_across_documents else pairs_by_distance(cut) * per_row
            tokens = longer_pieces(cut) * per_row if config.restart_positions else whole[1]
            add(name, rows * (1 - share) * weight, pairs, tokens)
        if share:
            add(PLANTED, rows * share, *whole)
    one_document = counts.pop("")
    rows, pairs, tokens = zip(*counts.values(), strict=True)
    return TrainedDistances(counts, Counts(sum(rows), np.sum(pairs, axis=0), np.sum(tokens, axis=0)), one_document)


def octaves(length: int) -> list[tuple[int, int]]:
    """1, 2 .. 3, 4 .. 7, ... up to `length - 1`: first and last of each."""
    return [(2**power, min(2 ** (power + 1), length) - 1) for power in range((length - 1).bit_length())]
