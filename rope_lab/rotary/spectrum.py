"""What a rotary variant is: one angular frequency for each pair of dimensions, and one factor on cosine and sine."""

import math
from typing import NamedTuple

import numpy as np


class Spectrum(NamedTuple):
    """The frequencies of one head.

    Attributes:
      theta: float64, shape `(head_dim // 2,)`; radians per token of the pair `(i, i + head_dim // 2)`.
      attention_factor: multiplies cosine and sine alike, so attention logits carry its square.
    """

    theta: np.ndarray
    attention_factor: float = 1.0


def inverse_powers(base: float, head_dim: int) -> np.ndarray:
    """Plain RoPE's geometric ladder: `theta_i = base ** (-2 i / head_dim)`, `i = 0 .. head_dim / 2 - 1`.

    Args:
      base: dimensionless, above 1.
      head_dim: dimensions of one attention head, even.

    Returns:
      float64 of shape `(head_dim // 2,)`, radians per token.

    Raises:
      ValueError: if `head_dim` is not a positive even number.
    """
    if head_dim <= 0 or head_dim % 2:
        raise ValueError(f"{head_dim=} must be a positive even number: rotary embeddings turn dimensions in pairs")
    return base ** (-2.0 * np.arange(head_dim // 2, dtype=np.float64) / head_dim)


def check_base(base: float) -> None:
    """Rejects a base that gives no falling ladder of frequencies."""
    if not (math.isfinite(base) and base > 1):
        raise ValueError(f"{base=} must be a finite number above 1 (10000 in the original RoPE)")


def check_factor(factor: float) -> None:
    """Rejects a context extension factor that would shorten the context."""
    if not (math.isfinite(factor) and factor >= 1):
        raise ValueError(f"{factor=} must be a finite number of at least 1: target length over trained length")


def check_trained_length(trained_length: int) -> None:
    """Rejects a trained length that no context has; it is the length of pretraining, not the one wanted now."""
    if trained_length < 1:
        raise ValueError(f"{trained_length=} must be at least 1: the context length in tokens that the model was pretrained with")


def check_attention_factor(attention_factor: float | None) -> None:
    """Rejects an explicit factor on cosine and sine that would erase or flip them; None leaves it to the variant's formula."""
    if attention_factor is not None and not (math.isfinite(attention_factor) and attention_factor > 0):
        raise ValueError(f"{attention_factor=} must be a finite number above 0, or None for the formula's own")


def check_betas(beta_fast: float, beta_slow: float) -> None:
    """Rejects bounds, in turns within the trained length, that leave no ramp between them."""
    if not (math.isfinite(beta_fast) and 0 < beta_slow < beta_fast):
        raise ValueError(f"{beta_fast=} and {beta_slow=} must satisfy 0 < beta_slow < beta_fast: turns within the trained length")
