"""The smallest base of plain RoPE that keeps B_m >= 0 over a whole context, as it really is.

Whether a base is valid for a length is decided over every integer distance (`decay`). The set of valid bases is not a
half-line but a union of intervals: below the base from which all are valid lie ever rarer, ever narrower pockets. No
bisection can find the first of them. What does is a walk along the logarithm of the base.

- Upwards, a base is refuted by one *witness*, a distance m with B_m < 0, and so is every base as far as Taylor's formula
  keeps B_m negative. The next witness is sought there. What is left between is no wider than a fraction of the resolution.
- Downwards, from a base above which validity follows by monotonicity, a cell of bases is proved valid for all distances
  at once; where the formula leaves distances open, the cell is halved for those alone.
"""

import math
from dataclasses import dataclass

import numpy as np

from rope_lab.rotary import inverse_powers
from rope_lab.theory.decay import check_length, gap_blocks
from rope_lab.theory.search import EDGE, BaseSearch

PAPER_TABLE_2 = {
    1_000: 4.3e3,
    2_000: 1.6e4,
    4_000: 2.7e4,
    8_000: 8.4e4,
    16_000: 3.1e5,
    32_000: 6.4e5,
    64_000: 2.1e6,
    128_000: 7.8e6,
    256_000: 3.6e7,
    512_000: 6.4e7,
    1_000_000: 5.1e8,
}
"""Context length in tokens -> lower bound of the base at head_dim 128, as printed in arXiv:2405.14591, Table 2."""

_GAP_SHARE = 64  # the widest unproved step below the infimum is resolution / 64
_WIDEST_CELL = 0.25
_FEW, _MANY = 30, 120  # distances left open in a cell: the next one is made wider, this one narrower
_SHORT, _MIDDLE, _LONG = 2**14, 2**18, 2**22  # distances taken at a time: few if one witness will do, many if all must be cleared
_LARGEST_LOG_BASE = 690.0  # float64 ends at exp(709)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What a `BaseBound` says about every real base, not only about those that were looked at.

    Widths are in the natural logarithm of the base: 0.001 is 0.1 %. Proofs are by Taylor's formula with its remainder, rounding
    included, over every integer distance.

    Attributes:
      infimum: "proved" if no interval of valid bases as wide as `resolution` lies between the start of the range and the infimum.
      widest_gap: the widest interval there without a witness proved to refute it; a pocket that was missed is narrower.
      gaps: all such intervals together.
      stable: "proved" if every base above `stable`, to the end of the range, is valid.
      stable_precision: within this below `stable` some B_m turns negative, or comes so near zero that it cannot be told.
      closed_form_above: from here on validity follows from monotonicity alone.
      intervals: "sampled" if the bases between infimum and stable were decided one each resolution and nothing is proved of
        those between; "not computed" otherwise.
      resolution: as asked for.
    """

    infimum: str
    widest_gap: float
    gaps: float
    stable: str
    stable_precision: float
    closed_form_above: float
    intervals: str
    resolution: float


@dataclass(frozen=True, kw_only=True)
class BaseBound:
    """Which bases keep B_m >= 0 at every integer distance up to `length`.

    Attributes:
      length: tokens.
      head_dim: dimensions of one head.
      base_range: the bases searched, lowest and highest.
      infimum: a valid base; the valid ones below it, if any, are within `guarantee.widest_gap` of it or in pockets narrower
        than that. None if there is no valid base in the range.
      stable: the base from which on every base of the range is valid. None if the range ends on an invalid one.
      intervals: the valid bases as `(first, last)` in rising order, the edges right to the resolution; the last one runs from
        `stable` to the end of the range. None if not asked for.
      guarantee: what is proved.
    """

    length: int
    head_dim: int
    base_range: tuple[float, float]
    infimum: float | None
    stable: float | None
    intervals: tuple[tuple[float, float], ...] | None
    guarantee: Guarantee


def base_bound(
    length: int,
    head_dim: int = 128,
    *,
    resolution: float = 1e-3,
    base_range: tuple[float, float] = (1.0, math.inf),
    intervals: bool = True,
) -> BaseBound:
    """Lower bound of plain RoPE's base for a context length.

        base_L = inf{base : B_m >= 0 for every integer 0 <= m <= L},   B_m = sum_i cos(m base ** (-2 i / d))

    Args:
      length: L, tokens. Lengths are taken as given: 32k is 32,000 or 32,768 as you mean it.
      head_dim: d, even.
      resolution: relative width in base, of the pockets that must not be missed and of the intervals' edges.
      base_range: search only here.
      intervals: also decide the bases between infimum and stable, one each resolution.

    Returns:
      Infimum, stable base and intervals, with what is proved of them.

    Raises:
      ValueError: if `length` is outside `1 .. MAX_LENGTH`, `head_dim` is not a positive even number, `resolution` is outside
        `1e-6 .. 0.1` or `base_range` is not rising from 1 or more.

    Source: Men et al., "Base of RoPE Bounds Context Length", arXiv:2405.14591, Eq. 18 and Table 2.
    """
    length = check_length("length", length)
    inverse_powers(2.0, head_dim)  # rejects a bad head_dim
    if not 1e-6 <= resolution <= 0.1:
        raise ValueError(f"{resolution=} must be of 1e-6 .. 0.1: a relative width in base (0.001 is 0.1 %)")
    lowest, highest = base_range
    if not 1 <= lowest < highest:
        raise ValueError(f"{base_range=} must be (lowest, highest) with 1 <= lowest < highest")

    search = BaseSearch(head_dim, length, _SHORT)
    closed_form = _closed_form(search)
    low = math.log(lowest)
    high = min(math.log(highest), max(closed_form, low), _LARGEST_LOG_BASE)
    first, gaps, widest_gap = _rise(search, low, high, resolution / _GAP_SHARE)
    stable = None
    if first is not None and (high >= closed_form or not search.witnesses(high).size):
        stable = _fall(BaseSearch(head_dim, length, _LONG), high, first)
    return BaseBound(
        length=length,
        head_dim=head_dim,
        base_range=(lowest, highest),
        infimum=None if first is None else math.exp(first),
        stable=None if stable is None else math.exp(stable),
        intervals=_runs(BaseSearch(head_dim, length, _MIDDLE), first, stable, high, highest, resolution) if intervals else None,
        guarantee=Guarantee(
            infimum="proved",
            widest_gap=widest_gap,
            gaps=gaps,
            stable="proved" if stable is not None else "none in the range",
            stable_precision=EDGE,
            closed_form_above=math.exp(closed_form) if closed_form < _LARGEST_LOG_BASE else math.inf,
            intervals="sampled" if intervals else "not computed",
            resolution=resolution,
        ),
    )


def power_law(lengths: np.ndarray, bases: np.ndarray) -> tuple[float, float]:
    """Least squares in log-log: `base = coefficient * length ** exponent`.

    Args:
      lengths: tokens; the paper's fit over its Table 2 takes 1024 * 2**k for "1k" to "1M".
      bases: dimensionless, of the same shape, at least two.

    Returns:
      Coefficient and exponent: 0.0424 and 1.628 in the paper.

    Raises:
      ValueError: if there are fewer than two lengths, the shapes differ or an entry is not positive.

    Source: Men et al., arXiv:2405.14591, the fit drawn in Fig. 1.
    """
    lengths, bases = np.asarray(lengths, dtype=np.float64), np.asarray(bases, dtype=np.float64)
    if lengths.shape != bases.shape or lengths.size < 2 or not (lengths > 0).all() or not (bases > 0).all():
        raise ValueError(f"{lengths=} and {bases=} must be two or more positive numbers each, in pairs")
    exponent, intercept = np.polyfit(np.log(lengths), np.log(bases), 1)
    return math.exp(intercept), float(exponent)


def _rise(search: BaseSearch, low: float, high: float, floor: float) -> tuple[float | None, float, float]:
    """The first valid base from `low` upwards, by witnesses, with the sum and the largest of the steps' unproved parts."""
    x, witnesses = low, np.empty(0, dtype=np.int64)
    gaps = widest_gap = 0.0
    while True:
        reach = search.reach(x, witnesses)
        if reach < floor:
            witnesses = search.witnesses(x, floor)
            if not witnesses.size:
                return x, gaps, widest_gap
            reach = search.reach(x, witnesses)
        if x == high:
            return None, gaps, widest_gap
        step = min(max(reach, floor), high - x)
        if reach < step:
            gaps += step - reach
            widest_gap = max(widest_gap, step - reach)
        x = high if x + step >= high else x + step


def _fall(search: BaseSearch, high: float, first: float) -> float:
    """The base above which every base up to `high` is proved valid: the highest invalid one, or `first` if that is none.

    Each segment of distances falls by itself, the longest distances first, so that the rest need only be cleared above the base
    where those failed, mostly in wide cells.
    """
    bottom = first
    for segment in sorted(search.segments, reverse=True):
        x, width = high, _WIDEST_CELL
        while x > bottom:
            left = max(x - width, bottom)
            centre, half_width = (x + left) / 2, (x - left) / 2
            near = search.near_zero(segment, centre, half_width)
            if near.size > _MANY and half_width > EDGE:
                width = half_width
                continue
            bottom = max(bottom, search.highest_invalid(near, centre, half_width))
            if near.size < _FEW:
                width = min(1.5 * width, _WIDEST_CELL)
            x = left
    return bottom


def _runs(
    search: BaseSearch, first: float | None, stable: float | None, high: float, highest: float, resolution: float
) -> tuple[tuple[float, float], ...]:
    """The valid bases from `first` up, decided one each resolution, as runs `(first, last)`."""
    if first is None:
        return ()
    end = high if stable is None else stable
    runs: list[list[float]] = []
    step, witnesses, valid_before = 0, np.empty(0, dtype=np.int64), False
    while (x := first + step * resolution) < end:
        reach = search.reach(x, witnesses)
        if reach <= 0:
            witnesses = search.witnesses(x)
            reach = search.reach(x, witnesses)
        valid = not witnesses.size
        if valid and valid_before:
            runs[-1][1] = x
        elif valid:
            runs.append([x, x])
        valid_before = valid
        step += max(math.ceil(reach / resolution), 1)
    closed = [(math.exp(a), math.exp(b)) for a, b in runs]
    return (*closed, (math.exp(stable), highest)) if stable is not None else tuple(closed)


def _closed_form(search: BaseSearch) -> float:
    """The log base from which every base is valid without a scan; infinite if none is known.

    With the `k` fastest cosines at their least, and every other pair within half a turn at the full length,

        B_m >= -k + sum_(i >= k) cos(L theta_i)   for all m <= L,

    and the right side rises with the base. The fastest pair alone, cos(m), has its least value over the integers.
    """
    pairs, length = search.head_dim // 2, search.length
    least_cosine = min(float(values.min()) for _, values in gap_blocks(np.ones(1), length))
    found = math.inf
    for fast in range(pairs // 2 + 1):
        least = 0.0 if fast == 0 else least_cosine if fast == 1 else -float(fast)
        low = 0.0 if fast == 0 else max(0.0, math.log(length / math.pi) / float(search.rates[fast]))
        high = min(found, _LARGEST_LOG_BASE)

        def holds(x: float, fast: int = fast, least: float = least) -> bool:
            phases = length * search.theta(x)[fast:]
            return bool(phases.max(initial=0.0) <= math.pi and np.cos(phases).sum() + least >= search.doubt)

        if low >= high or not holds(high):
            continue
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        found = high
    return found
