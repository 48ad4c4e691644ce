"""xPos: rotation with a decay over distance."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_lab.rotary.encoding import AbstractPositionEncoding
from rope_lab.rotary.rotate import cos_sin, phase_table, rotate
from rope_lab.rotary.spectrum import Spectrum, check_base, inverse_powers

_GAMMA = 0.4
_MOST_DOUBLINGS = 56  # of a query or key; a product of two and the activations themselves still fit float32 and bf16


@dataclass(frozen=True, kw_only=True)
class XPos(AbstractPositionEncoding):
    """xPos: query n and key m are turned like RoPE's and scaled by `zeta_i ** (n / scale_base)` and `zeta_i ** (-m / scale_base)`,

        zeta_i = (2 i / d + 0.4) / 1.4
        score = Re sum_i q_i conj(k_i) zeta_i ** ((n - m) / scale_base) exp(1j (n - m) theta_i),  theta_i = base ** (-2 i / d)

    so a score depends on the distance alone and its fast pairs fade first. Both powers are taken about the middle of the positions, which
    changes no score and keeps them small. What no choice of middle could hold is rejected: a clamp would bend the scores.

    Attributes:
      scale_base: tokens over which pair i fades by zeta_i.
      base: dimensionless; 500,000 gives the xPos with adjusted base frequency (xPos-ABF).

    Source: Sun et al., "A Length-Extrapolatable Transformer", arXiv:2212.10554, section 2, with the gamma and scale_base of its authors'
    code; that pairs adjacent dimensions, this half a head apart. With a larger base: Xiong et al., arXiv:2309.16039.
    """

    scale_base: float = 512.0
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        if not (math.isfinite(self.scale_base) and self.scale_base > 0):
            raise ValueError(
                f"scale_base={self.scale_base} must be a finite number above 0: tokens over which a pair fades (512 in the paper)"
            )

    def table(self, head_dim: int, length: int, max_position: int) -> Any:
        ladder = inverse_powers(self.base, head_dim)
        fastest = -math.log2(_GAMMA / (1 + _GAMMA))  # halvings of pair 0 in scale_base tokens
        least = fastest * max_position / 2 / _MOST_DOUBLINGS
        if self.scale_base < least:
            raise ValueError(
                f"scale_base={self.scale_base} fades too fast for {max_position} positions: their scales would overflow; "
                f"set scale_base to at least {math.ceil(least)}"
            )
        fade = np.log((2 * np.arange(head_dim // 2) / head_dim + _GAMMA) / (1 + _GAMMA)) / self.scale_base
        return tuple(phase_table(Spectrum(ladder), max_position, growth) for growth in (fade, -fade))

    def phases(self, table: Any, positions: jax.Array) -> Any:
        return tuple(tuple(part[:, None] for part in cos_sin(each, positions)) for each in table)

    def queries(self, q: jax.Array, phases: Any) -> jax.Array:
        return _turned(q, phases[0])

    def keys(self, k: jax.Array, phases: Any) -> jax.Array:
        return _turned(k, phases[1])


def _turned(x: jax.Array, phases: Any) -> jax.Array:
    largest = float(jnp.finfo(x.dtype).max)
    # float16 ends at 65504: saturated, not infinite. float32 and bf16 never get there.
    return jnp.clip(rotate(x.astype(jnp.float32), *phases), -largest, largest).astype(x.dtype)
