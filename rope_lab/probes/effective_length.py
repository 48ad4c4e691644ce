"""Effective context length: the one definition.

Of an accuracy measured at growing lengths (or distances), the effective length is the largest one up to which *every* shorter one also
reaches the threshold. The largest that reaches it at all is reported beside it: the two differ when retrieval revives far away.
"""

from typing import NamedTuple

import numpy as np


class EffectiveLength(NamedTuple):
    """Attributes:
    contiguous: largest length up to which all pass; 0 if the first fails.
    longest: largest length that passes; 0 if none does.
    low, high: 95 % bootstrap interval of `contiguous`.
    """

    contiguous: int
    longest: int
    low: int
    high: int


def contiguous_length(lengths: np.ndarray, accuracy: np.ndarray, threshold: float) -> int:
    """The largest length up to which every accuracy is at least `threshold`; 0 if the first is below.

    Args:
      lengths: increasing, tokens.
      accuracy: of the same shape, 0 to 1.
      threshold: 0 to 1.
    """
    passing = np.asarray(accuracy) >= threshold
    count = len(passing) if passing.all() else int(np.argmin(passing))
    return int(lengths[count - 1]) if count else 0


def effective_length(
    lengths: np.ndarray, outcomes: list[np.ndarray], threshold: float, resamples: int = 1000, seed: int = 0
) -> EffectiveLength:
    """Effective length of measured outcomes, with a bootstrap interval.

    Args:
      lengths: increasing, tokens.
      outcomes: for each length, the trials' successes (bool), at least one.
      threshold: accuracy that counts as success, 0 to 1.
      resamples: bootstrap samples; trials are redrawn within each length.
      seed: of the redraws.

    Raises:
      ValueError: if lengths do not increase, or a length has no trial.
    """
    if len(lengths) == 0 or len(lengths) != len(outcomes) or (np.diff(lengths) <= 0).any():
        raise ValueError(f"lengths={list(lengths)} must increase, with one array of outcomes each (got {len(outcomes)})")
    counts = np.array([len(trials) for trials in outcomes])
    if (counts == 0).any():
        raise ValueError(f"length {lengths[int(np.argmin(counts))]} has no trial: ask for more queries")
    successes = np.array([int(np.sum(trials)) for trials in outcomes])
    accuracy = successes / counts
    passing = accuracy >= threshold
    draws = np.random.default_rng(seed).binomial(counts, accuracy, (resamples, len(counts))) / counts
    redrawn = [contiguous_length(lengths, draw, threshold) for draw in draws]
    low, high = np.quantile(redrawn, [0.025, 0.975], method="nearest")
    longest = int(lengths[np.flatnonzero(passing)[-1]]) if passing.any() else 0
    return EffectiveLength(contiguous_length(lengths, accuracy, threshold), longest, int(low), int(high))


RULER_THRESHOLD = 0.856
"""Accuracy of Llama2-7B at 4k tokens, which RULER takes as the pass mark. Source: Hsieh et al., "RULER", arXiv:2404.06654, Table 3."""


def length_scalars(lengths: np.ndarray, outcomes: list[np.ndarray], threshold: float) -> dict[str, float]:
    """What every retrieval probe reports of its accuracy curve.

    Three pass marks: `threshold` itself, with its interval; `threshold` times the accuracy at the shortest length, which tells how far
    retrieval carries in a model that retrieves poorly even nearby; and RULER's.

    Args:
      lengths, outcomes, threshold: as in `effective_length`.
    """
    absolute = effective_length(lengths, outcomes, threshold)
    accuracy = np.array([np.mean(trials) for trials in outcomes])
    relative = threshold * accuracy[0]
    return {
        "effective_length_tokens": absolute.contiguous,
        "effective_length_low_tokens": absolute.low,
        "effective_length_high_tokens": absolute.high,
        "longest_passing_length_tokens": absolute.longest,
        "effective_length_relative_tokens": contiguous_length(lengths, accuracy, relative) if relative > 0 else 0,
        "effective_length_ruler_tokens": contiguous_length(lengths, accuracy, RULER_THRESHOLD),
        "accuracy": float(accuracy.mean()),
        "accuracy_farthest": float(accuracy[-1]),
    }
