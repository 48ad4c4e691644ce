"""Rotary embedding on part of each head."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.rotate import rotate
from rope_lab.rotary.spectrum import Spectrum, check_base, inverse_powers


@dataclass(frozen=True, kw_only=True)
class Partial(Variant):
    """Partial RoPE: `r = fraction * d` dimensions of each head turn; the rest carry no position. Two meanings go by this name:

        layout "rotated":       theta_i = base ** (-2 i / r), i < r / 2; pairs (i, i + r / 2); dimensions r .. d - 1 pass unchanged
        layout "proportional":  theta_i = base ** (-2 i / d), i < r / 2; pairs (i, i + d / 2); the slow pairs stand still

    The first is a whole ladder on a smaller head; the second cuts the ladder off at its slow end. In both, `spectrum` gives d / 2
    frequencies, those of the pairs that stand still being 0.

    Attributes:
      fraction: dimensionless, above 0, at most 1; `fraction * d` must be an even whole number (transformers rounds down instead).
      layout: "rotated" or "proportional".
      base: dimensionless.

    Source: "rotated": Black et al., "GPT-NeoX-20B", arXiv:2204.06745 (rotary on the first quarter of the dimensions), and transformers'
    `partial_rotary_factor`. "proportional": p-RoPE in Barbero et al., "Round and Round We Go! What makes Rotary Positional Encodings
    useful?", arXiv:2410.06205, and transformers' rope type of that name.
    """

    fraction: float
    layout: str = "rotated"
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction} must lie above 0 and be at most 1: the share of a head's dimensions that turn")
        if self.layout not in ("rotated", "proportional"):
            raise ValueError(f"layout={self.layout!r} must be 'rotated' or 'proportional'")

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        ladder = inverse_powers(self.base, head_dim)
        r = self._rotated(head_dim)
        theta = np.zeros(head_dim // 2)
        theta[: r // 2] = inverse_powers(self.base, r) if self.layout == "rotated" else ladder[: r // 2]
        return Spectrum(theta)

    def queries(self, q: jax.Array, phases: Any) -> jax.Array:
        return self._turn(q, phases)

    def keys(self, k: jax.Array, phases: Any) -> jax.Array:
        return self._turn(k, phases)

    def _turn(self, x: jax.Array, phases: Any) -> jax.Array:
        if self.layout == "proportional":
            return rotate(x, *phases)
        r = self._rotated(x.shape[-1])
        turned = rotate(x[..., :r], *(each[..., : r // 2] for each in phases))
        return jnp.concatenate([turned, x[..., r:]], axis=-1)

    def _rotated(self, head_dim: int) -> int:
        r = round(self.fraction * head_dim)
        if r < 2 or r % 2 or not math.isclose(r, self.fraction * head_dim, rel_tol=1e-6):
            raise ValueError(
                f"fraction={self.fraction} of {head_dim=} is {self.fraction * head_dim:g} dimensions; it must be an even whole number"
            )
        return r
