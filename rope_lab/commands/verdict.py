"""What theory says of one kind of layer before it is trained: shared by `rope-lab theory` and `rope-lab train`."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rope_lab.rotary import AbstractPositionEncoding, RoPE, Scaled, Variant
from rope_lab.theory.decay import check_length, context_bound, quarter_period, violations
from rope_lab.theory.lower_bound import BaseBound, base_bound
from rope_lab.theory.periods import angle_ranges

SEARCH_LIMIT = 2**20
"""Tokens up to which L_theta is looked for, unless more are claimed."""

NO_THEORY = "is not described by frequencies alone: the theory does not apply"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One spectrum against one length.

    Attributes:
      variant: the encoding, as it prints.
      head_dim: dimensions of one head.
      length: tokens; every distance `0 .. length` was looked at.
      trained_length: tokens of pretraining, where known.
      theta: frequencies at `length`, radians per token.
      attention_factor: on cosine and sine; the logits carry its square.
      l_theta: the longest context without a violation, tokens.
      l_theta_is_limit: no violation was found up to `l_theta`, where the search ended.
      quarter_period: tokens after which the slowest pair's cosine is negative; infinite where a pair stands still.
      violations: how many distances up to `length` have B_m < 0.
      first_intervals: the first ten runs of them, `(first, last)`.
      worst_gap, worst_distance: the least B_m, and the distance in tokens where it is reached.
      out_of_distribution: indices of the pairs asked for angles that pretraining never showed; None where it is not known.
    """

    variant: str
    head_dim: int
    length: int
    trained_length: int | None
    theta: np.ndarray
    attention_factor: float
    l_theta: int
    l_theta_is_limit: bool
    quarter_period: float
    violations: int
    first_intervals: tuple[tuple[int, int], ...]
    worst_gap: float
    worst_distance: int
    out_of_distribution: tuple[int, ...] | None

    @property
    def holds(self) -> bool:
        """Similar tokens are preferred at every distance up to the length."""
        return self.violations == 0

    def sentence(self) -> str:
        """The verdict in one line."""
        reached = f"L_theta {'>= ' if self.l_theta_is_limit else '= '}{self.l_theta:,}"
        if self.holds:
            return f"holds: {reached} covers {self.length:,} tokens; least B_m {self.worst_gap:.4g} at distance {self.worst_distance:,}"
        return (
            f"below the bound: {reached}, {self.length:,} tokens are asked for; B_m < 0 at {self.violations:,} distances, "
            f"least {self.worst_gap:.4g} at {self.worst_distance:,}"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values, units in the names; what is infinite or unknown is null."""
        return {
            "variant": self.variant,
            "head_dim": self.head_dim,
            "length_tokens": self.length,
            "trained_length_tokens": self.trained_length,
            "holds": self.holds,
            "verdict": self.sentence(),
            "L_theta_tokens": self.l_theta,
            "L_theta_is_search_limit": self.l_theta_is_limit,
            "quarter_period_tokens": self.quarter_period,
            "worst_gap": self.worst_gap,
            "worst_distance_tokens": self.worst_distance,
            "violations": self.violations,
            "first_violation_intervals_tokens": self.first_intervals,
            "out_of_distribution_pairs": self.out_of_distribution,
            "attention_factor": self.attention_factor,
            "theta_radians_per_token": self.theta,
        }


def judge(encoding: AbstractPositionEncoding, head_dim: int, length: int, trained_length: int | None = None) -> Verdict:
    """Holds an encoding's spectrum at `length` against every distance up to it.

    Args:
      encoding: from `rope_lab.rotary`.
      head_dim: dimensions of one head, even.
      length: tokens of the context in use, or the window of a sliding layer.
      trained_length: tokens of pretraining; None: the variant's own field of that name, if it has one.

    Raises:
      ValueError: if the encoding is not frequencies alone, or a length cannot be scanned.
    """
    turned = rotary_of(encoding)
    if turned is None:
        raise ValueError(f"{encoding} {NO_THEORY}")
    length = check_length("length", length)
    if trained_length is None:
        trained_length = getattr(turned, "trained_length", None)
    spectrum = turned.spectrum(head_dim, length)
    limit = max(length, SEARCH_LIMIT)
    reached = context_bound(spectrum.theta, limit)
    found = violations(spectrum.theta, length)
    unseen = None
    if trained_length is not None:
        seen = pretraining_spectrum(turned, head_dim, check_length("trained_length", trained_length))
        unseen = angle_ranges(seen, spectrum.theta, trained_length=trained_length, target_length=length).out_of_distribution
    return Verdict(
        variant=str(encoding),
        head_dim=head_dim,
        length=length,
        trained_length=trained_length,
        theta=spectrum.theta,
        attention_factor=spectrum.attention_factor,
        l_theta=reached,
        l_theta_is_limit=reached == limit,
        quarter_period=quarter_period(spectrum.theta),
        violations=found.count,
        first_intervals=found.intervals[:10],
        worst_gap=found.worst_gap,
        worst_distance=found.worst_distance,
        out_of_distribution=None if unseen is None else tuple(unseen.tolist()),
    )


def rotary_of(encoding: AbstractPositionEncoding) -> Variant | None:
    """The variant whose frequencies decide the signs of B_m: a growing scale on the logits changes none. None: there is none."""
    inner = encoding.encoding if isinstance(encoding, Scaled) else encoding
    return inner if isinstance(inner, Variant) else None


def extends(encoding: Variant) -> bool:
    """Whether a variant extends a model that was pretrained with plain RoPE: those have a factor."""
    return hasattr(encoding, "factor")


def pretraining_spectrum(encoding: Variant, head_dim: int, trained_length: int) -> np.ndarray:
    """The frequencies of pretraining, radians per token: plain RoPE's where the variant extends a model, else its own."""
    if extends(encoding):
        return RoPE(base=vars(encoding)["base"]).spectrum(head_dim, trained_length).theta
    return encoding.spectrum(head_dim, trained_length).theta


@functools.cache
def sufficient_base(length: int, head_dim: int) -> BaseBound:
    """Which bases of plain RoPE keep B_m >= 0 over `length` tokens; searched once a process."""
    return base_bound(length, head_dim, intervals=False)


def launch_lines(encoding: AbstractPositionEncoding, head_dim: int, length: int, *, require_bound: bool) -> list[str]:
    """What is told before a run at `length` tokens starts: one line, or two where the base falls short.

    Raises:
      ValueError: if `require_bound` and the spectrum is below the bound, or has none.
    """
    if rotary_of(encoding) is None:
        if require_bound:
            raise ValueError(f"theory.require_bound=True, but {encoding} {NO_THEORY}; set --config.theory.require_bound=False")
        return [f"theory: {encoding} {NO_THEORY}"]
    verdict = judge(encoding, head_dim, length)
    lines = [f"theory: {verdict.sentence()}"]
    if not verdict.holds:
        remedy = base_sentence(sufficient_base(length, head_dim))
        if require_bound:
            raise ValueError(f"theory.require_bound=True, but {encoding} is {verdict.sentence()}; {remedy}")
        lines.append(f"theory: {remedy}")
    return lines


def base_sentence(bound: BaseBound) -> str:
    """The bases that would do, in one line."""
    plain = f"plain RoPE at head_dim {bound.head_dim} and {bound.length:,} tokens"
    if bound.infimum is None:
        return f"no base of {plain} is valid"
    above = f"; from {math.ceil(bound.stable):,} up every base is valid" if bound.stable is not None else ""
    return f"the smallest valid base of {plain} is about {round(bound.infimum):,}{above}"
