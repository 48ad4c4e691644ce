"""How a spectrum's preference for similar tokens decays with distance, over every integer distance and nothing sampled.

All functions take `theta`, the float64 frequencies of a `Spectrum` (its attention factor scales B_m by a positive number
and changes no sign). Sums over a whole context are formed as matrix products: with `m = K a + b`,

    cos(m theta) = cos(K a theta) cos(b theta) - sin(K a theta) sin(b theta),

so two tables of about `sqrt(length)` rows give B_m for every integer distance at the speed of BLAS.

What "negative" means: B_m is that of the float64 frequencies as given, taken as exact numbers. A value whose sign the
product's rounding could have turned is formed again from phases split into two exact parts, and counts as negative only
below `-ZERO_PER_PAIR * number of pairs`: anything nearer is called zero, which is no violation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

ZERO_PER_PAIR = 2.0**-50
"""Half-width, per pair, of the band around zero in which B_m counts as zero: the error of the careful evaluation."""

MAX_LENGTH = 2**26
"""Longest distance accepted: integers up to it times the upper half of a frequency are exact in float64."""

_BLOCK_ROWS = 64
_PIECE = 2**18  # multiplications; OpenBLAS wakes its threads for more


def similarity_gap(theta: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """How much more attention a similar token gets than a random one, `distances` tokens away, in units of `2 sigma**2`.

        B_m = sum_i cos(m theta_i)

    Args:
      theta: float64 of shape `(pairs,)`, radians per token.
      distances: any shape, tokens.

    Returns:
      float64 of the shape of `distances`, dimensionless, at most `pairs`.

    Raises:
      ValueError: if `theta` is empty, not one-dimensional or not finite.

    Source: Men et al., "Base of RoPE Bounds Context Length", arXiv:2405.14591, Theorem 1 and Eq. 16.
    """
    theta = check_theta(theta)
    distances = np.asarray(distances, dtype=np.float64)
    return np.asarray(np.cos(distances[..., None] * theta).sum(axis=-1))


def context_bound(theta: np.ndarray, limit: int = 2**20) -> int:
    """Longest context over which similar tokens are preferred at every distance.

        L_theta = sup{L : B_m >= 0 for every integer 0 <= m <= L}

    Args:
      theta: float64 of shape `(pairs,)`, radians per token.
      limit: tokens; how far to look.

    Returns:
      L_theta in tokens, or `limit` where no distance up to `limit` is violated (L_theta may then be larger, or infinite).

    Raises:
      ValueError: if `theta` is empty or not finite, or `limit` is outside `1 .. MAX_LENGTH`.

    Source: Men et al., arXiv:2405.14591, Eq. 17.
    """
    theta, limit = check_theta(theta), check_length("limit", limit)
    for start, values in gap_blocks(theta, limit):
        negative = is_negative(theta, np.arange(start, start + len(values)), values)
        if negative.any():
            return start + int(negative.argmax()) - 1
    return limit


def quarter_period(theta: np.ndarray) -> float:
    """Distance at which the slowest pair has made a quarter turn, beyond which its cosine is negative.

        pi / (2 min_i |theta_i|)

    Args:
      theta: float64 of shape `(pairs,)`, radians per token.

    Returns:
      Tokens; infinite if a pair does not turn at all.

    Raises:
      ValueError: if `theta` is empty or not finite.

    Source: Men et al., arXiv:2405.14591, section 3, where a base is judged by the periods its slow pairs complete.
    """
    slowest = float(np.abs(check_theta(theta)).min())
    return math.pi / (2 * slowest) if slowest > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Violations:
    """Where a context prefers random tokens to similar ones.

    Attributes:
      length: tokens; every integer distance `0 .. length` was looked at.
      count: how many of them have B_m < 0.
      intervals: runs of such distances in rising order, each `(first, last)`, both included.
      worst_gap: the smallest B_m over all distances.
      worst_distance: where it is reached, tokens; of distances equal but for rounding, one.
    """

    length: int
    count: int
    intervals: tuple[tuple[int, int], ...]
    worst_gap: float
    worst_distance: int


def violations(theta: np.ndarray, length: int) -> Violations:
    """Counts and locates the integer distances `0 <= m <= length` at which B_m < 0.

    Args:
      theta: float64 of shape `(pairs,)`, radians per token.
      length: tokens.

    Raises:
      ValueError: if `theta` is empty or not finite, or `length` is outside `1 .. MAX_LENGTH`.

    Source: Men et al., arXiv:2405.14591, Eq. 16 and the counts of Table 4.
    """
    theta, length = check_theta(theta), check_length("length", length)
    negative, worst = [], (math.inf, 0)
    for start, values in gap_blocks(theta, length):
        negative.append(start + np.flatnonzero(is_negative(theta, np.arange(start, start + len(values)), values)))
        lowest = int(values.argmin())
        worst = min(worst, (float(values[lowest]), start + lowest))
    distances = np.concatenate(negative)
    ends = np.flatnonzero(np.diff(distances) > 1)
    firsts = distances[np.concatenate(([0], ends + 1))] if distances.size else distances
    lasts = distances[np.concatenate((ends, [-1]))] if distances.size else distances
    return Violations(
        length=length,
        count=int(distances.size),
        intervals=tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)),
        worst_gap=float(similarity_gap(theta, np.array(worst[1]))),
        worst_distance=worst[1],
    )


def score_bound(theta: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """The spectrum's share of the upper bound on an attention score at `distances` tokens.

        |A_m| <= max_l |h_(l+1) - h_l| * sum_(n = 1 .. d/2) |sum_(l < n) exp(sqrt(-1) m theta_l)|

    where `h_l` is the product of query and key in pair `l`, as complex numbers. Returned is the outer sum; RoFormer's plot
    divides it by `d / 2`.

    Args:
      theta: float64 of shape `(pairs,)`, radians per token, in the order of the pairs.
      distances: any shape, tokens.

    Returns:
      float64 of the shape of `distances`, dimensionless, at most `pairs * (pairs + 1) / 2`, reached at distance 0.

    Raises:
      ValueError: if `theta` is empty or not finite.

    Source: Men et al., arXiv:2405.14591, Eq. 14, after Su et al., "RoFormer", arXiv:2104.09864, section 3.4.3.
    """
    phases = np.asarray(distances, dtype=np.float64)[..., None] * check_theta(theta)
    return np.asarray(np.hypot(np.cos(phases).cumsum(axis=-1), np.sin(phases).cumsum(axis=-1)).sum(axis=-1))


def gap_blocks(theta: np.ndarray, length: int) -> Iterator[tuple[int, np.ndarray]]:
    """B_m for every integer `0 <= m <= length`, in order, as `(start, values of start, start + 1, ...)`.

    Args:
      theta: checked float64 of shape `(pairs,)`, radians per token.
      length: tokens.
    """
    width = max(1, math.isqrt(length))
    fine = np.arange(width, dtype=np.float64)[:, None] * theta
    fine = np.concatenate([np.cos(fine), np.sin(fine)], axis=1)
    for start in range(0, length + 1, width * _BLOCK_ROWS):
        rows = np.arange(start, min(start + width * _BLOCK_ROWS, length + 1), width, dtype=np.float64)
        coarse = rows[:, None] * theta
        values = outer_product(np.concatenate([np.cos(coarse), -np.sin(coarse)], axis=1), fine)
        yield start, values.reshape(-1)[: length + 1 - start]


def outer_product(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """`rows @ columns.T`, in pieces small enough to stay on the calling thread.

    The products here take microseconds. Threads that wait for each other on a shared machine make milliseconds of them.
    """
    inner = rows.shape[1]
    width = max(1, min(64, _PIECE // (32 * inner)))
    whole = len(rows) - len(rows) % 32
    product = np.empty((len(rows), len(columns)), dtype=rows.dtype)
    for start in range(0, len(columns), width):
        piece = columns[start : start + width].T
        np.matmul(rows[:whole].reshape(-1, 32, inner), piece, out=product[:whole].reshape(-1, 32, len(columns))[..., start : start + width])
        np.matmul(rows[whole:], piece, out=product[whole:, start : start + width])
    return product


def is_negative(theta: np.ndarray, distances: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which of the distances have B_m < 0, given B_m as a product of tables left it; the doubtful ones are formed again."""
    doubt = rounding(theta, int(distances.max(initial=0)))
    negative = values < -doubt
    for place in np.flatnonzero(~negative & (values < doubt)).tolist():
        negative[place] = is_negative_at(theta, int(distances[place]))
    return negative


def rounding(theta: np.ndarray, length: int) -> float:
    """A bound on the error of B_m from tables, as in `gap_blocks`: phases up to `length` rounded in proportion, then the sums."""
    pairs = len(theta)
    return float(length * np.abs(theta).sum() * 2.0**-52 + pairs * (2 * pairs + 8) * 2.0**-52)


def is_negative_at(theta: np.ndarray, distance: int) -> bool:
    """Whether B_m < 0 at one integer distance, with an error below `ZERO_PER_PAIR` per pair, within which it counts as zero."""
    terms = []
    for angle in theta.tolist():
        fraction, exponent = math.frexp(angle)
        upper = math.ldexp(math.floor(fraction * 2**26), exponent - 26)  # 26 bits: the product with the distance is exact
        high, low = distance * upper, distance * (angle - upper)
        terms += [math.cos(high) * math.cos(low), -math.sin(high) * math.sin(low)]
    return math.fsum(terms) < -ZERO_PER_PAIR * len(theta)


def check_theta(theta: np.ndarray) -> np.ndarray:
    """Frequencies as a float64 vector; rejects what is no spectrum."""
    theta = np.asarray(theta, dtype=np.float64)
    if theta.ndim != 1 or theta.size == 0:
        raise ValueError(f"theta.shape={theta.shape} must be (pairs,) with at least one pair: give Spectrum.theta")
    if not np.isfinite(theta).all():
        raise ValueError(f"theta has {int((~np.isfinite(theta)).sum())} entries that are not finite: frequencies are radians per token")
    return theta


def check_length(name: str, length: int) -> int:
    """A number of tokens as an integer; rejects one that cannot be scanned."""
    if not isinstance(length, int | np.integer) or not 1 <= length <= MAX_LENGTH:
        raise ValueError(f"{name}={length!r} must be an integer of 1 .. {MAX_LENGTH} tokens")
    return int(length)
