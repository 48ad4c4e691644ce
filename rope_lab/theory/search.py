"""Deciding, for every distance up to a length at once, whether bases of plain RoPE keep B_m >= 0.

Bases are given as `x = log base`. In x, with `a_i = 2 i / d`,

    d/dx B_m = sum_i a_i m theta_i sin(m theta_i),   |d2/dx2 B_m| <= sum_i (a_i m theta_i)^2 + a_i^2 m theta_i

and the second bound falls with x, so Taylor's formula carries the sign of B_m from one base to its neighbours.

Most distances are dismissed in groups: with the `k` fastest cosines put at -1, the rest varies slowly, and one product
of tables settles `2 s + 1` neighbouring distances at a time. The few groups left are formed in full.
"""

import functools
import itertools
import math

import numpy as np

from rope_lab.rotary import inverse_powers
from rope_lab.theory.decay import is_negative, outer_product, rounding

EDGE = 1e-8
"""Log base: where B_m is this close to a change of sign, a cell of bases is halved no more."""

_POOL = 24  # witnesses kept from one stretch of distances
_HALF_BLOCKS = np.array([0, 1, 2, 4, 8, 16, 32, 64])


class BaseSearch:
    """Decides bases over every integer distance up to `length`, at most `longest_segment` of them at a time."""

    def __init__(self, head_dim: int, length: int, longest_segment: int) -> None:
        self.head_dim, self.length = head_dim, length
        self.rates = 2.0 * np.arange(head_dim // 2) / head_dim  # theta_i = exp(-rates_i x)
        self.doubt = rounding(np.ones(head_dim // 2), length)
        ends = [0, min(4096, length + 1)]
        while ends[-1] <= length:
            ends.append(min(ends[-1] + min(3 * ends[-1], longest_segment), length + 1))
        self.segments = list(itertools.pairwise(ends))  # searched in turn, the last successful one first

    def theta(self, x: float) -> np.ndarray:
        """The frequencies, radians per token."""
        return inverse_powers(math.exp(x), self.head_dim)

    def witnesses(self, x: float, reach: float = 0.0) -> np.ndarray:
        """Distances with B_m < 0, looked for until they reach far enough; none at all proves the base valid."""
        found = np.empty(0, dtype=np.int64)
        for segment in list(self.segments):
            deepest = self._deepest(segment, x)
            if deepest.size:
                found = np.concatenate([found, deepest])
                self.segments.remove(segment)
                self.segments.insert(0, segment)
                if self.reach(x, found) >= reach:
                    break
        return found

    def _deepest(self, segment: tuple[int, int], x: float) -> np.ndarray:
        """Distances of the segment with B_m < 0, lowest first: the most promising blocks alone if they have any, else all blocks."""
        centres, half_block = self._open_blocks(segment, x, 0.0)
        for part in (centres[:_POOL], centres[_POOL:]):
            distances, gaps, _ = self._formed(part, half_block, segment, x)
            negative = is_negative(self.theta(x), distances, gaps)
            if negative.any():
                return distances[negative][np.argsort(gaps[negative])[:_POOL]]
        return np.empty(0, dtype=np.int64)

    def reach(self, x: float, witnesses: np.ndarray) -> float:
        """How far above `x` the best of these distances is proved to have B_m < 0; 0 if none has it at `x`."""
        theta = self.theta(x)
        gaps, slopes = self._gaps_and_slopes(theta, witnesses)
        depths, slopes, bends = -gaps - self.doubt, slopes + self.doubt * self.length, self._bends(theta, witnesses)
        negative = depths > 0
        if not negative.any():
            return 0.0
        depths, slopes, bends = depths[negative], slopes[negative], bends[negative]
        with np.errstate(divide="ignore"):
            return float((2 * depths / (slopes + np.sqrt(slopes**2 + 2 * bends * depths))).max())

    def near_zero(self, segment: tuple[int, int], x: float, half_width: float) -> np.ndarray:
        """The distances of the segment for which B_m >= 0 is not proved at once for all bases within `half_width` of `x`."""
        distances, gaps, slopes = self._formed(*self._open_blocks(segment, x, half_width), segment, x)
        return distances[~self._cleared(gaps, slopes, distances, self.theta(x - half_width), half_width)]

    def highest_invalid(self, distances: np.ndarray, x: float, half_width: float) -> float:
        """The end of the highest stretch within `half_width` of `x` where one of the distances has B_m < 0; -inf if none has."""
        x_of, highest, fastest = np.full(len(distances), x), -math.inf, self.theta(x - half_width)
        while distances.size and half_width > EDGE:
            half_width /= 2
            distances, x_of = np.concatenate([distances, distances]), np.concatenate([x_of - half_width, x_of + half_width])
            gaps, slopes = self._gaps_and_slopes(np.exp(-np.multiply.outer(x_of, self.rates)), distances)
            highest = max(highest, x_of[gaps < -self.doubt].max(initial=-math.inf))
            open_still = ~self._cleared(gaps, slopes, distances, fastest, half_width) & (x_of + half_width > highest)
            distances, x_of = distances[open_still], x_of[open_still]
        return float(max(highest, (x_of + half_width).max(initial=-math.inf)))

    def _cleared(self, gaps: np.ndarray, slopes: np.ndarray, distances: np.ndarray, fastest: np.ndarray, half_width: float) -> np.ndarray:
        """Which distances have B_m >= 0 within `half_width` of where gap and slope were taken, by Taylor's formula and rounding."""
        least = gaps - np.abs(slopes) * half_width - self._bends(fastest, distances) * half_width**2 / 2
        return least > self.doubt * (1 + self.length * half_width)

    def _bends(self, fastest: np.ndarray, distances: np.ndarray) -> np.ndarray:
        """A bound on the second derivative of B_m by x, at all bases whose frequencies are `fastest` or lower."""
        steps = self.rates * fastest
        return distances * (distances * float(steps @ steps) + float(self.rates @ steps))

    def _gaps_and_slopes(self, theta: np.ndarray, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """B_m and its derivative by x, at one spectrum or at a spectrum for each distance."""
        phases = distances[:, None] * theta
        return np.cos(phases).sum(axis=1), (np.sin(phases) * phases) @ self.rates

    def _open_blocks(self, segment: tuple[int, int], x: float, half_width: float) -> tuple[np.ndarray, int]:
        """Centres of the blocks with room for a negative B_m within `half_width` of `x`, most promising first, and their half width."""
        theta, (low, high) = self.theta(x), segment
        # Rounded, so that plans are shared.
        fast, half_block = _plan(self.head_dim, low, high, round(4 * x) / 4, 2.0 ** math.frexp(half_width)[1] if half_width else 0.0)
        block = 2 * half_block + 1
        blocks = -(-(high - low) // block)
        width = max(1, math.isqrt(blocks))
        slow, first = theta[fast:], low + half_block
        starts = _ladder(slow, first, block * width, -(-blocks // width))
        rest = outer_product(starts, _ladder(-slow, 0, block, width)).reshape(-1)[:blocks]
        drift = high * half_width * float(self.rates[fast:] @ self.theta(x - half_width)[fast:])
        single = len(theta) * (2 * len(theta) + 16) * 2.0**-23  # the rounding of the product in float32
        still = np.flatnonzero(rest < fast + half_block * slow.sum() + drift + single)
        return first + block * still[np.argsort(rest[still])], half_block

    def _formed(
        self, centres: np.ndarray, half_block: int, segment: tuple[int, int], x: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The distances of these blocks, with B_m and its derivative by x at `x`."""
        theta, offsets = self.theta(x), np.arange(-half_block, half_block + 1)
        near, turn = _cosines_and_sines(theta, centres), _cosines_and_sines(-theta, offsets)
        # d/dx cos(m theta) = a m theta sin(m theta), and the sine of a sum needs the columns' halves exchanged, one negated.
        weights = self.rates * theta
        crossed = np.concatenate([-turn[:, len(theta) :] * weights, turn[:, : len(theta)] * weights], axis=1)
        distances = centres[:, None] + offsets
        inside = distances < segment[1]
        slopes = distances * outer_product(near, crossed)
        return distances[inside], outer_product(near, turn)[inside], slopes[inside]


def _cosines_and_sines(theta: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Cosines of `distances * theta` and, beside them, sines."""
    phases = distances[:, None] * theta
    return np.concatenate([np.cos(phases), np.sin(phases)], axis=1)


def _ladder(theta: np.ndarray, start: int, step: int, count: int) -> np.ndarray:
    """The same in float32 for the distances `start, start + step, ...`, composed of two short tables in float64."""
    width = math.isqrt(count) + 1
    coarse = np.exp(1j * (start + step * width * np.arange(-(-count // width)))[:, None] * theta)
    fine = np.exp(1j * (step * np.arange(width))[:, None] * theta)
    turns = (coarse[:, None] * fine).reshape(-1, len(theta))[:count]
    return np.concatenate([np.real(turns), np.imag(turns)], axis=1, dtype=np.float32, casting="same_kind")


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
    slack = fast + _HALF_BLOCKS * tail(theta)[fast] + high * half_width * tail(theta * rates)[fast]
    sigmas = np.maximum((tail(means)[fast] - slack) / np.sqrt(tail(variances)[fast]), 0.0)
    share = np.where(sigmas > 0, 0.5 * np.exp(-sigmas * (0.717 + 0.416 * sigmas)), 1.0)
    blocks = (high - low) / (2 * _HALF_BLOCKS + 1)
    coarse = blocks * (0.16 * (pairs - fast) + 1.5) + 32 * np.sqrt(blocks) * (pairs - fast)
    close = share * blocks * pairs * (25 + 0.6 * (2 * _HALF_BLOCKS + 1))
    best = np.unravel_index(np.argmin(coarse + close), share.shape)
    return int(best[0]), int(_HALF_BLOCKS[best[1]])
