"""Key-value retrieval by distance: a record far back in real text, and its key asked for exactly d tokens later.

Shape letters: N rows, W tokens in a row, Q questions in a row.
"""

from dataclasses import dataclass

import numpy as np

from rope_lab.data.retrieval import RetrievalConfig, Surface, plant, row_uniforms
from rope_lab.probes.effective_length import length_scalars
from rope_lab.probes.score import Scorer


@dataclass(frozen=True, kw_only=True)
class KVByDistanceConfig:
    """Attributes:
    rows: contexts scored; each carries up to `data.retrieval.max_records` questions.
    edges: distances that part the buckets, tokens, increasing; empty: 16, 32, 48, 64, 96, 128, 192, 256, 384, ... to the context length.
    threshold: accuracy that counts as "can retrieve".
    seed: of the contexts.
    """

    rows: int = 64
    edges: tuple[int, ...] = ()
    threshold: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"probes.kv_by_distance.rows={self.rows} must be at least 1")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"probes.kv_by_distance.threshold={self.threshold} must lie in (0, 1]: it is an accuracy")
        if any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"probes.kv_by_distance.edges={self.edges} must increase")


def default_edges(length: int) -> tuple[int, ...]:
    """16, 32, then one and a half and twice each power of two, up to the context length."""
    edges = [16, 32] + [edge for power in range(5, 41) for edge in (3 * 2 ** (power - 1), 2 ** (power + 1))]
    return (*(edge for edge in edges if edge < length), length)


class KVByDistanceProbe:
    """Accuracy by distance, and the effective context length that follows.

    Buckets are half-open, `edges[i - 1] <= distance < edges[i]`, and named by their upper edge. Every row asks at distances of every
    bucket; the text around is held out. Guessing scores 1 / num_values.

    Args:
      scorer: runs the model.
      windows: int32 `(rows, W)` of held-out text, used in turn if there are fewer.
      surface: how records are written.
      task: alphabet sizes and questions in a row.
      config: buckets and threshold.

    Attributes:
      planted: the rows that are scored, and the questions in them.

    Raises:
      ValueError: if the buckets do not fit the context, or one is left without a question.
    """

    def __init__(self, scorer: Scorer, windows: np.ndarray, surface: Surface, task: RetrievalConfig, config: KVByDistanceConfig):
        length = windows.shape[1] - 1
        edges = np.array(config.edges or default_edges(length))
        shortest, longest = surface.shortest_distance, surface.longest_distance(length)
        lows = np.maximum(np.concatenate([[0], edges[:-1]]), shortest)
        highs = np.minimum(edges, longest + 1)
        if (highs <= lows).any() or edges[-1] > length:
            raise ValueError(f"probes.kv_by_distance.edges={tuple(edges.tolist())} must lie within the distances {shortest} .. {longest}")
        N, Q = config.rows, task.max_records
        uniforms = row_uniforms(config.seed, np.arange(N), 3 * Q + task.num_keys)
        bucket = (np.arange(Q)[None] + np.arange(N)[:, None]) % len(edges)
        distances = (lows[bucket] + uniforms[:, :Q] * (highs - lows)[bucket]).astype(np.int32)
        self.planted = plant(windows[np.arange(N) % len(windows)], distances, uniforms[:, Q:], surface)
        self._places = np.maximum(self.planted.query_end, 0)[..., None] + np.arange(surface.answers.shape[1])  # of empty slots, any
        asked = self.planted.query_end >= 0
        self._row, self._slot = np.nonzero(asked)
        self._bucket = bucket[asked]
        missing = np.setdiff1d(np.arange(len(edges)), self._bucket)
        if len(missing):
            raise ValueError(f"no question at distances below {edges[missing[0]]} found room; raise probes.kv_by_distance.rows={N}")
        self._scorer, self._edges, self._threshold = scorer, edges, config.threshold

    def __call__(self, params: dict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        hits = self._scorer.hits_at(params, self.planted.tokens, self._places.reshape(len(self._places), -1))
        right = np.all(hits.reshape(self._places.shape)[self._row, self._slot], axis=-1)
        outcomes = [right[self._bucket == number] for number in range(len(self._edges))]
        accuracy = np.array([trials.mean() for trials in outcomes])
        scalars = length_scalars(self._edges, outcomes, self._threshold)
        distances = self.planted.distances[self._row, self._slot]
        arrays = {
            "edges_tokens": self._edges,
            "accuracy": accuracy,
            "count": np.array([len(trials) for trials in outcomes]),
            "distance_tokens": distances,
            "correct": right,
        }
        return scalars, arrays
