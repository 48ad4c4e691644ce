"""The one rotation of the codebase, and cosines and sines that stay exact out to position 2**20 and beyond.

Shape letters: B batch, T length, H heads, D head dim.

A float32 product `position * theta` is off by up to 0.06 radians at position 2**20, and by whole turns in bf16. So the
phase is never formed in less than float64: a position is split as `1024 a + b`, the cosines and sines of `1024 a theta` and of
`b theta` are tabulated on the host in float64, and the two are composed by angle addition. Error below 1e-6.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rope_lab.rotary.spectrum import Spectrum

_FINE = 1024


class PhaseTable(NamedTuple):
    """Cosine and sine of coarse (`1024 a theta`) and fine (`b theta`, `b < 1024`) phases; float32, shape `(rows, D / 2)` each.

    The attention factor is folded into the coarse pair.
    """

    coarse_cos: np.ndarray | jax.Array
    coarse_sin: np.ndarray | jax.Array
    fine_cos: np.ndarray | jax.Array
    fine_sin: np.ndarray | jax.Array


def phase_table(spectrum: Spectrum, max_position: int, growth: np.ndarray | None = None) -> PhaseTable:
    """Tabulates a spectrum on the host for positions `0 .. max_position - 1` (at least).

    Args:
      spectrum: the frequencies.
      max_position: tokens.
      growth: per token and pair, the natural logarithm by which cosine and sine grow, being `exp(growth * (n - max_position / 2))` at n;
        angle addition composes it with the phases. None: they keep their size.
    """
    coarse = np.arange(-(-max_position // _FINE), dtype=np.float64)[:, None] * _FINE * spectrum.theta
    fine = np.arange(min(_FINE, max_position), dtype=np.float64)[:, None] * spectrum.theta
    m = spectrum.attention_factor
    parts = [m * np.cos(coarse), m * np.sin(coarse), np.cos(fine), np.sin(fine)]
    if growth is not None:
        blocks, tokens = (np.arange(len(each), dtype=np.float64)[:, None] for each in (coarse, fine))
        coarse_size, fine_size = np.exp(growth * (_FINE * blocks - max_position / 2)), np.exp(growth * tokens)
        parts = [size * part for size, part in zip((coarse_size, coarse_size, fine_size, fine_size), parts, strict=True)]
    return PhaseTable(*(part.astype(np.float32) for part in parts))


def cos_sin(table: PhaseTable, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of `position * theta`, times the attention factor.

    Args:
      table: from `phase_table`.
      positions: integers of any shape; a position outside the table gives NaN, never another position's phase.

    Returns:
      Two float32 arrays of shape `positions.shape + (D // 2,)`.
    """

    def look_up(column: np.ndarray | jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.asarray(column).at[rows].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)

    a, b = positions // _FINE, positions % _FINE
    cos_a, sin_a = look_up(table.coarse_cos, a), look_up(table.coarse_sin, a)
    cos_b, sin_b = look_up(table.fine_cos, b), look_up(table.fine_sin, b)
    return cos_a * cos_b - sin_a * sin_b, sin_a * cos_b + cos_a * sin_b


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns each pair `(x[i], x[i + D/2])` counter-clockwise by its phase.

        y[i]       = x[i] cos[i] - x[i + D/2] sin[i]
        y[i + D/2] = x[i] sin[i] + x[i + D/2] cos[i]

    The half-split pairing is that of Hugging Face Llama checkpoints; Meta's originals pair adjacent dimensions (2i, 2i + 1).

    Args:
      x: shape `(..., D)`, any floating dtype.
      cos, sin: float32, broadcastable to `(..., D // 2)`.

    Returns:
      The shape and dtype of `x`; computed in float32 and cast once, at the end.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return turned.astype(x.dtype)
