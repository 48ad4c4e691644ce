"""The smallest base of plain RoPE that keeps B_m >= 0 over a whole context, as it really is.

Whether a base is valid for a length is decided over every integer distance (`decay`). The set of valid bases is not a
half-line but a union of intervals: below the base from which all are valid lie ever rarer, ever narrower pockets. No
bisection can find the first of them. What does, walks along `x = log base`:

- Upwards, a base is refuted by one *witness*, a distance m with B_m < 0. As a function of x,

      B_m' = sum_i m theta_i a_i sin(m theta_i),   |B_m''| <= sum_i (m theta_i a_i)^2 + m theta_i a_i^2,   a_i = 2 i / d

  and the last bound falls with x, so Taylor's formula tells how far beyond x the witness still refutes. The next witness
  is taken there. Every base passed is proved invalid but for gaps no wider than a fraction of the resolution.
- Downwards, from a base above which validity follows by monotonicity, a cell of x is proved valid by the same bounds,
  applied to every distance at once; where no cell of the resolution's width can be proved, its centre is decided instead.

Most distances are dismissed in groups: with the `k` fastest cosines put at -1, the rest varies slowly, and one product
of tables settles `2 s + 1` neighbouring distances at a time.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from rope_lab.rotary import inverse_powers
from rope_lab.theory.decay import check_length, gap_blocks, negative_distances, rounding

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

_GAP_SHARE = 64  # the widest unproved step below the infimum, and the precision of every edge, is resolution / 64
_POOL = 24  # witnesses kept from one scan
_WIDEST_CELL = 0.25
_LARGEST_LOG_BASE = 690.0  # float64 ends at exp(709)
_BLOCK_HALF_WIDTHS = (0, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What of a `BaseBound` is proved for every real base, and what rests on the bases that were sampled.

    Widths are in the natural logarithm of the base: 0.001 is 0.1 %. "Decided" means: over every integer distance.

    Attributes:
      resolution: no interval of valid bases as wide as this lies below `infimum`, none of invalid bases above `stable`; proved.
      widest_gap: the widest interval below `infimum` without a witness proved to refute all of it; a valid pocket missed is narrower.
      gaps: all such intervals together.
      closed_form_above: from here on every base is valid by monotonicity, without any scan.
      proved_above: from here on every base is proved valid, by cells whose every distance is bounded.
      sampled_above_stable: how many bases between `stable` and `proved_above` were decided, one each resolution; between them nothing is proved.
    """

    resolution: float
    widest_gap: float
    gaps: float
    closed_form_above: float
    proved_above: float
    sampled_above_stable: int

    def __str__(self) -> str:
        below = f"proved: below the infimum no valid pocket is wider than {self.widest_gap:.1e} (relative), all unproved gaps sum to {self.gaps:.1e}"
        above = f"proved: every base above {self.proved_above:.6g} is valid"
        between = f"sampled every {self.resolution:.1e}: {self.sampled_above_stable} bases between the stable base and there, all valid"
        return "; ".join([below, above, between])


@dataclass(frozen=True, kw_only=True)
class BaseBound:
    """Which bases keep B_m >= 0 at every integer distance up to `length`.

    Attributes:
      length: tokens.
      head_dim: dimensions of one head.
      base_range: the bases searched, lowest and highest.
      infimum: the smallest valid base found; itself decided. None if there is none in the range.
      stable: the base above which every base (of the range) is valid; itself decided. None if the range ends on an invalid base.
      intervals: the valid bases as `(first, last)` in rising order, each edge decided and right to the resolution; the last
        runs to the end of the range. None if not asked for.
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

    search = _Search(head_dim, length)
    closed_form = _closed_form(search)
    low = math.log(lowest)
    high = min(math.log(highest), max(closed_form, low), _LARGEST_LOG_BASE)
    first, gaps, widest_gap = _rise(search, low, high, resolution / _GAP_SHARE)
    fall = _fall(search, high, first, closed_form, resolution)
    runs = None
    if intervals:
        runs = _runs(search, first, fall.stable, high, highest, resolution)
    return BaseBound(
        length=length,
        head_dim=head_dim,
        base_range=(lowest, highest),
        infimum=None if first is None else math.exp(first),
        stable=None if fall.stable is None else math.exp(fall.stable),
        intervals=runs,
        guarantee=Guarantee(
            resolution=resolution,
            widest_gap=widest_gap,
            gaps=gaps,
            closed_form_above=math.exp(closed_form) if closed_form < _LARGEST_LOG_BASE else math.inf,
            proved_above=None if fall.proved_above is None else math.exp(fall.proved_above),
            sampled_above_stable=fall.sampled,
        ),
    )


def _rise(search: "_Search", low: float, high: float, floor: float) -> tuple[float | None, float, float]:
    """The first valid base from `low` upwards, by witnesses, with the sum and the largest of the steps' unproved parts."""
    x, witnesses = low, np.empty(0, dtype=np.int64)
    gaps = widest_gap = 0.0
    while True:
        reach = search.reach(x, witnesses)
        if reach < floor:
            witnesses = search.witnesses(x)
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


@dataclass(frozen=True, kw_only=True)
class _Fall:
    stable: float | None
    proved_above: float | None
    sampled: int


def _fall(search: "_Search", high: float, first: float | None, closed_form: float, resolution: float) -> _Fall:
    """From `high` downwards to the highest invalid base, or to `first`: by proved cells, then one base each resolution."""
    if first is None:
        return _Fall(stable=None, proved_above=None, sampled=0)
    if high < closed_form and search.witnesses(high).size:
        return _Fall(stable=None, proved_above=None, sampled=0)
    x, width = high, _WIDEST_CELL
    while x > first and width >= resolution:
        width = min(width, x - first)
        if search.cell_is_valid(x - width / 2, width / 2):
            x = first if width == x - first else x - width
            width = min(2 * width, _WIDEST_CELL)
        else:
            width /= 2
    proved_above, sampled = x, 0
    while x > first:
        below = max(x - resolution, first)
        if search.witnesses(below).size:
            return _Fall(stable=_edge(search, below, x, resolution / _GAP_SHARE), proved_above=proved_above, sampled=sampled)
        x = below
        sampled += 1
    return _Fall(stable=first, proved_above=proved_above, sampled=sampled)


def _edge(search: "_Search", invalid: float, valid: float, precision: float) -> float:
    """A valid base within `precision` above an invalid one."""
    while valid - invalid > precision:
        middle = (invalid + valid) / 2
        if search.witnesses(middle).size:
            invalid = middle
        else:
            valid = middle
    return valid


def _runs(
    search: "_Search", first: float | None, stable: float | None, high: float, highest: float, resolution: float
) -> tuple[tuple[float, float], ...]:
    """The valid bases from `first` up, decided one each resolution, as runs `(first, last)`."""
    if first is None:
        return ()
    end = high if stable is None else stable
    runs: list[list[float]] = []
    x, witnesses, valid_before = first, np.empty(0, dtype=np.int64), False
    while x < end:
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
        x += max(reach, resolution)
    closed = [(math.exp(a), math.exp(b)) for a, b in runs]
    return (*closed, (math.exp(stable), highest)) if stable is not None else tuple(closed)


class _Search:
    """Decides bases, given as `x = log base`, over every integer distance up to `length`."""

    def __init__(self, head_dim: int, length: int) -> None:
        self.head_dim, self.length = head_dim, length
        self.rates = 2.0 * np.arange(head_dim // 2) / head_dim  # theta_i = exp(-rates_i x)
        self.doubt = rounding(np.ones(head_dim // 2), length)
        ends = [0, min(4096, length + 1)]
        while ends[-1] <= length:
            ends.append(min(ends[-1] + min(3 * ends[-1], 2**18), length + 1))
        self.segments = list(zip(ends[:-1], ends[1:], strict=True))  # searched in turn, the last successful one first

    def theta(self, x: float) -> np.ndarray:
        return inverse_powers(math.exp(x), self.head_dim)

    def witnesses(self, x: float) -> np.ndarray:
        """Distances with B_m < 0, the deepest of those met first; none at all proves the base valid."""
        theta = self.theta(x)
        for place, segment in enumerate(self.segments):
            distances, gaps = self._candidates(x, segment, 0.0)
            negative = negative_distances(theta, distances, gaps)
            if negative.size:
                self.segments.insert(0, self.segments.pop(place))
                depths = gaps[np.searchsorted(distances, negative)]
                return negative[np.argsort(depths)[:_POOL]]
        return np.empty(0, dtype=np.int64)

    def reach(self, x: float, witnesses: np.ndarray) -> float:
        """How far above `x` the best of these distances is proved to have B_m < 0; 0 if none has it at `x`."""
        gaps, slopes, bends = self._taylor(x, x, witnesses)
        depths = -gaps - self.doubt
        witnesses = depths > 0
        if not witnesses.any():
            return 0.0
        depths, slopes, bends = depths[witnesses], slopes[witnesses], bends[witnesses]
        with np.errstate(divide="ignore"):
            return float((2 * depths / (slopes + np.sqrt(slopes**2 + 2 * bends * depths))).max())

    def cell_is_valid(self, x: float, half_width: float) -> bool:
        """Whether B_m >= 0 is proved for every distance and every base within `half_width` of `x`."""
        steepest = float(self.rates @ self.theta(x - half_width))
        for segment in reversed(self.segments):
            distances, gaps = self._candidates(x, segment, half_width)
            near = gaps <= distances * (steepest * half_width) + self.doubt
            gaps, slopes, bends = self._taylor(x, x - half_width, distances[near])
            if (gaps - np.abs(slopes) * half_width - bends * half_width**2 / 2 <= self.doubt).any():
                return False
        return True

    def _taylor(self, x: float, lowest: float, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """B_m and its derivative by x at `x`, and a bound on the second derivative from `lowest` upwards."""
        phases = distances[:, None] * self.theta(x)
        turns = distances[:, None] * self.theta(lowest) * self.rates
        return np.cos(phases).sum(axis=1), (np.sin(phases) * phases) @ self.rates, (turns * (turns + self.rates)).sum(axis=1)

    def _candidates(self, x: float, segment: tuple[int, int], half_width: float) -> tuple[np.ndarray, np.ndarray]:
        """Distances of the segment, in rising order, and their B_m at `x`: all that may be negative within `half_width`, and neighbours."""
        theta, (low, high) = self.theta(x), segment
        fast, half_block = _plan(self.head_dim, low, high, round(4 * x) / 4, half_width)
        block = 2 * half_block + 1
        blocks = -(-(high - low) // block)
        width = max(1, math.isqrt(blocks))
        first_centre = low + half_block
        centres = first_centre + block * width * np.arange(-(-blocks // width))
        slow = theta[fast:]
        rest = (_rows(slow, centres, np.float32) @ _columns(slow, block * np.arange(width), np.float32)).reshape(-1)[:blocks]
        drift = high * half_width * float(self.rates[fast:] @ self.theta(x - half_width)[fast:])
        single = len(theta) * (2 * len(theta) + 8) * 2.0**-23  # the rounding of the product in float32
        kept = np.flatnonzero(rest < fast + half_block * slow.sum() + drift + single)
        offsets = np.arange(-half_block, half_block + 1)
        gaps = _rows(theta, first_centre + block * kept, np.float64) @ _columns(theta, offsets, np.float64)
        distances = (first_centre + block * kept)[:, None] + offsets
        inside = distances < high
        return distances[inside], gaps[inside]


def _rows(theta: np.ndarray, distances: np.ndarray, dtype: type) -> np.ndarray:
    phases = distances[:, None] * theta
    return np.concatenate([np.cos(phases), -np.sin(phases)], axis=1).astype(dtype)


def _columns(theta: np.ndarray, distances: np.ndarray, dtype: type) -> np.ndarray:
    phases = theta[:, None] * distances
    return np.concatenate([np.cos(phases), np.sin(phases)]).astype(dtype)


@functools.lru_cache(maxsize=4096)
def _plan(head_dim: int, low: int, high: int, x: float, half_width: float) -> tuple[int, int]:
    """How many fast pairs to put at -1 and how many neighbours to settle at a time; decides speed, never a result.

    The sum of the other cosines over the segment is taken as normal, with the mean and variance of each cosine there, which
    tells the share of blocks to be looked at closely. Costs are in nanoseconds of one core, roughly.
    """
    rates = 2.0 * np.arange(head_dim // 2) / head_dim
    theta = np.exp(-rates * x)
    ends = np.array([[low], [high]]) * theta
    span = (high - low) * theta
    means = np.diff(np.sin(ends), axis=0)[0] / span
    variances = np.maximum(0.5 + np.diff(np.sin(2 * ends), axis=0)[0] / (4 * span) - means**2, 1e-9)

    def tail(values: np.ndarray) -> np.ndarray:
        return values[::-1].cumsum()[::-1]

    pairs = len(theta)
    fast = np.arange(pairs // 2 + 1)[:, None]
    half_blocks = np.array(_BLOCK_HALF_WIDTHS)
    slack = fast + half_blocks * tail(theta)[fast] + high * half_width * tail(theta * rates)[fast]
    sigmas = np.maximum((tail(means)[fast] - slack) / np.sqrt(tail(variances)[fast]), 0.0)
    share = np.where(sigmas > 0, 0.5 * np.exp(-sigmas * (0.717 + 0.416 * sigmas)), 1.0)
    blocks = (high - low) / (2 * half_blocks + 1)
    coarse = blocks * (0.12 * (pairs - fast) + 1.5) + 32 * np.sqrt(blocks) * (pairs - fast)
    close = share * blocks * pairs * (25 + 0.3 * (2 * half_blocks + 1))
    best = np.unravel_index(np.argmin(coarse + close), share.shape)
    return int(best[0]), int(half_blocks[best[1]])


def _closed_form(search: "_Search") -> float:
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
        low = 0.0 if fast == 0 else max(0.0, math.log(length / math.pi) / float(search.rates[fast])) if fast < pairs else math.inf
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
