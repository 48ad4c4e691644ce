"""The periodic view of rotary embeddings: which pairs have turned far enough in training to be trusted beyond it.

Reading of lengths: at length T a pair has swept the angle `T theta`, and has completed a turn when that is `2 pi` or more.

Source: Liu et al., "Scaling Laws of RoPE-based Extrapolation", arXiv:2310.05209, unless stated otherwise.
"""

import math
from dataclasses import dataclass

import numpy as np

from rope_lab.rotary import inverse_powers
from rope_lab.rotary.spectrum import check_base
from rope_lab.theory.decay import check_theta

_ROUNDING = 1e-9  # relative: a target that only repeats the trained angles, as PI's does, shows nothing new


def periods(theta: np.ndarray) -> np.ndarray:
    """Tokens each pair takes for a full turn: `2 pi / |theta_i|`.

    Args:
      theta: float64 of shape `(pairs,)`, radians per token.

    Returns:
      float64 of shape `(pairs,)`, tokens; infinite for a pair that does not turn.

    Raises:
      ValueError: if `theta` is empty or not finite.
    """
    with np.errstate(divide="ignore"):
        return 2 * math.pi / np.abs(check_theta(theta))


def unfinished_pairs(theta: np.ndarray, length: float, turns: float = 1.0) -> np.ndarray:
    """Pairs that never complete `turns` turns within `length` tokens: `length |theta_i| < 2 pi turns`.

    Args:
      theta: float64 of shape `(pairs,)`, radians per token.
      length: tokens.
      turns: 1, or 0.5 and 0.25 for a half and a quarter turn, where the cosine has reached -1 and 0.

    Returns:
      Indices of the pairs, rising.

    Raises:
      ValueError: if `theta` is empty or not finite, or `length` or `turns` is not positive.
    """
    _check_positive("length", length)
    _check_positive("turns", turns)
    return np.flatnonzero(length * np.abs(check_theta(theta)) < 2 * math.pi * turns)


@dataclass(frozen=True, kw_only=True)
class CriticalDimension:
    """Dimensions whose pairs have completed a turn in training.

    Attributes:
      unceiled: `d log_base(T / 2 pi)`, a real number between 0 and `head_dim`.
      ceiled: `2 ceil(unceiled / 2)`, the paper's `d_extra`.
    """

    unceiled: float
    ceiled: int


def critical_dimension(base: float, trained_length: float, head_dim: int) -> CriticalDimension:
    """Critical dimension for extrapolation: beyond it, no pair has seen a full turn.

        d_extra = 2 ceil(d / 2 * log_base(T / 2 pi))

    Args:
      base: dimensionless, that of pretraining.
      trained_length: T, tokens of pretraining.
      head_dim: d, even.

    Returns:
      Both readings, held between 0 and `head_dim`: at `head_dim` every pair has completed a turn.

    Raises:
      ValueError: if `base` is not above 1, `trained_length` not positive or `head_dim` not a positive even number.

    Source: arXiv:2310.05209, the lemma that defines the critical dimension.
    """
    check_base(base)
    _check_positive("trained_length", trained_length)
    inverse_powers(base, head_dim)  # rejects a bad head_dim
    unceiled = head_dim * math.log(trained_length / (2 * math.pi)) / math.log(base)
    unceiled = min(max(unceiled, 0.0), float(head_dim))
    return CriticalDimension(unceiled=unceiled, ceiled=2 * math.ceil(unceiled / 2))


def small_base_thresholds(trained_length: float) -> tuple[float, float, float]:
    """Bases below which even the slowest pair passes a quarter, a half and a full turn within the trained length.

        beta_1 = 2 T / pi,   beta_2 = T / pi,   beta_3 = T / (2 pi)

    They hold in the limit of many dimensions, where the slowest frequency is `1 / base`.

    Args:
      trained_length: T, tokens.

    Returns:
      `(beta_1, beta_2, beta_3)`, dimensionless.

    Raises:
      ValueError: if `trained_length` is not positive.

    Source: arXiv:2310.05209, the scaling law of smaller bases.
    """
    _check_positive("trained_length", trained_length)
    return 2 * trained_length / math.pi, trained_length / math.pi, trained_length / (2 * math.pi)


def extrapolation_limit(tuned_base: float, critical: float, head_dim: int) -> float:
    """Length up to which a model tuned with a larger base extrapolates: the period of its critical pair.

        T_extra = 2 pi * base ** (d_extra / d)

    The critical dimension is that of *pretraining*: pairs that had not seen a full turn then stay unreliable at any base.

    Args:
      tuned_base: dimensionless, the base of continued training.
      critical: `d_extra`, either reading of `critical_dimension` at the base and length of pretraining.
      head_dim: d, even.

    Returns:
      T_extra, tokens.

    Raises:
      ValueError: if `tuned_base` is not above 1, `head_dim` not a positive even number or `critical` outside `0 .. head_dim`.

    Source: arXiv:2310.05209, the scaling law of larger bases; 129,027 tokens at base 1e6 for Llama 2 (d_extra = 92, d = 128).
    """
    check_base(tuned_base)
    inverse_powers(tuned_base, head_dim)  # rejects a bad head_dim
    if not 0 <= critical <= head_dim:
        raise ValueError(f"{critical=} must be of 0 .. {head_dim=}: it counts dimensions")
    return 2 * math.pi * tuned_base ** (critical / head_dim)


@dataclass(frozen=True, kw_only=True)
class CriticalBase:
    """Smallest base whose critical pair has its whole period within the tuning length, by either reading of the dimension.

    Attributes:
      unceiled: with the real exponent `log_base(T / 2 pi)`: 71,738 for Llama 2 tuned at 16,384 tokens.
      ceiled: with the critical dimension rounded up to whole pairs: about 56,600 for the same.
    """

    unceiled: float
    ceiled: float


def critical_base(tuning_length: float, *, base: float, trained_length: float, head_dim: int) -> CriticalBase:
    """The base at which T_extra equals the tuning length; a larger one is needed to extrapolate beyond it.

        unceiled:  base ** log_(T / 2 pi)(T_tune / 2 pi)
        ceiled:    (T_tune / 2 pi) ** (d / d_extra)

    Args:
      tuning_length: T_tune, tokens of continued training.
      base: dimensionless, that of pretraining.
      trained_length: T, tokens of pretraining.
      head_dim: d, even.

    Raises:
      ValueError: as `critical_dimension`, or if one of the lengths is not above `2 pi` tokens.

    Source: arXiv:2310.05209, the critical base of the scaling law of larger bases, printed with the unceiled exponent.
    """
    turn = 2 * math.pi
    for name, length in (("tuning_length", tuning_length), ("trained_length", trained_length)):
        if not (math.isfinite(length) and length > turn):
            raise ValueError(f"{name}={length!r} must be a finite number above 2 pi tokens: no pair completes a turn within less")
    critical = critical_dimension(base, trained_length, head_dim)
    return CriticalBase(
        unceiled=base ** (math.log(tuning_length / turn) / math.log(trained_length / turn)),
        ceiled=(tuning_length / turn) ** (head_dim / critical.ceiled),
    )


@dataclass(frozen=True, kw_only=True)
class AngleRanges:
    """The angles each pair sweeps at the trained and at the target length.

    Attributes:
      trained: float64 of shape `(pairs,)`, radians; the largest angle seen in training, at most a full turn.
      target: float64 of shape `(pairs,)`, radians; the largest angle asked for, at most a full turn.
      out_of_distribution: indices of the pairs that are asked for angles above all they were trained on, rising.
    """

    trained: np.ndarray
    target: np.ndarray
    out_of_distribution: np.ndarray


def angle_ranges(trained: np.ndarray, target: np.ndarray, *, trained_length: float, target_length: float) -> AngleRanges:
    """Compares the angles of training with those of use; beyond a full turn nothing is new.

        seen_i = min(T |theta_i|, 2 pi),   asked_i = min(L |theta'_i|, 2 pi),   out of distribution: asked_i > seen_i

    Args:
      trained: float64 of shape `(pairs,)`, radians per token; the frequencies of training.
      target: the same for the target length; equal to `trained` if nothing is changed.
      trained_length: T, tokens.
      target_length: L, tokens.

    Raises:
      ValueError: if a spectrum is empty or not finite, their shapes differ, or a length is not positive.

    Source: Men et al., "Base of RoPE Bounds Context Length", arXiv:2405.14591, Fig. 2.
    """
    trained, target = check_theta(trained), check_theta(target)
    if trained.shape != target.shape:
        raise ValueError(f"{trained.shape=} and {target.shape=} must be equal: pairs are compared one by one")
    _check_positive("trained_length", trained_length)
    _check_positive("target_length", target_length)
    seen = np.minimum(trained_length * np.abs(trained), 2 * math.pi)
    asked = np.minimum(target_length * np.abs(target), 2 * math.pi)
    return AngleRanges(trained=seen, target=asked, out_of_distribution=np.flatnonzero(asked > seen * (1 + _ROUNDING)))


def dynamic_ntk_base(base: float, length: float, unscaled_length: float, head_dim: int) -> float:
    """Dynamic NTK's base for a context of `length` tokens.

        base                                          for length <= T
        base * (length / T) ** (d / (d - 2))          beyond

    T is the trained length in the ordinary form. After tuning with a larger base the context is reliable up to T_extra, and
    nothing need be changed before: give `extrapolation_limit` for T.

    Args:
      base: dimensionless, of the model as trained.
      length: tokens now in context.
      unscaled_length: T, tokens: the trained length or T_extra.
      head_dim: d, even, at least 4.

    Returns:
      The base, dimensionless.

    Raises:
      ValueError: if `base` is not above 1, a length is not positive or `head_dim` is no even number of at least 4.

    Source: arXiv:2310.05209, where dynamic NTK is applied beyond T_extra; the formula is that of emozilla, "Dynamically Scaled
      RoPE", 2023, with factor 1.
    """
    check_base(base)
    _check_positive("length", length)
    _check_positive("unscaled_length", unscaled_length)
    if head_dim < 4 or head_dim % 2:
        raise ValueError(f"{head_dim=} must be an even number of at least 4: the exponent is d / (d - 2)")
    return base * max(1.0, length / unscaled_length) ** (head_dim / (head_dim - 2))


def log_scale(length: float, unscaled_length: float) -> float:
    """Log-scaled attention: what the logits of a query with `length` tokens before it are multiplied by.

        max(1, log_T(length))

    Args:
      length: tokens the query attends to.
      unscaled_length: T, tokens: the trained length, or T_extra for a model tuned with a larger base.

    Returns:
      The factor, dimensionless, 1 up to T.

    Raises:
      ValueError: if `length` is not positive or `unscaled_length` not above 1.

    Source: arXiv:2310.05209, log-scaled attention with T or T_extra; the scaling is Su's, after Chiang and Cholak, arXiv:2202.12172.
    """
    _check_positive("length", length)
    if not (math.isfinite(unscaled_length) and unscaled_length > 1):
        raise ValueError(f"{unscaled_length=} must be a finite number above 1 token: it is the base of a logarithm")
    return max(1.0, math.log(length) / math.log(unscaled_length))


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r} must be a finite number above 0")
