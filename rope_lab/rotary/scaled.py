"""Attention scalings that grow with the query's position, around any position encoding."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_lab.rotary.encoding import AbstractPositionEncoding


@dataclass(frozen=True, kw_only=True)
class Scaled(AbstractPositionEncoding):
    """Another encoding, whose query at position n (and so each of its logits) is multiplied by

        max(1, ln(n + 1) / ln(log_n_length)) * (1 + temperature_scale * ln(1 + floor((n + 1) / temperature_length)))

    A factor whose fields are None is 1. Both keep attention from flattening out as a context grows. They are functions of the position
    itself, not of a distance: with positions that restart at each document, n counts within it.

    Attributes:
      encoding: what is scaled.
      log_n_length: tokens, at least 2: the trained length T, or T_extra of a model tuned with a larger base; up to there nothing changes.
      temperature_length: tokens, at least 1: the factor rises each time this many have passed (8,192 in Llama 4).
      temperature_scale: how much it rises, above 0 (0.1 in Llama 4); set together with `temperature_length`.

    Source: log n: Su, after Chiang and Cholak, "Overcoming a Theoretical Limitation of Self-Attention", arXiv:2202.12172; with T_extra, Liu
    et al., "Scaling Laws of RoPE-based Extrapolation", arXiv:2310.05209. Su scales by ln n / ln T below T as well; this follows the latter
    paper and Qwen's code, where the factor is never under 1. Temperature: Llama 4's code in transformers, which applies it in NoPE layers.
    """

    encoding: AbstractPositionEncoding
    log_n_length: int | None = None
    temperature_length: int | None = None
    temperature_scale: float | None = None

    def __post_init__(self) -> None:
        if self.log_n_length is not None and self.log_n_length < 2:
            raise ValueError(f"log_n_length={self.log_n_length} must be at least 2: logits are scaled by a logarithm to this base")
        if (self.temperature_length is None) != (self.temperature_scale is None):
            raise ValueError(
                f"temperature_length={self.temperature_length} and temperature_scale={self.temperature_scale} must both be set "
                "(8192 and 0.1 in Llama 4), or neither"
            )
        if self.temperature_length is not None and self.temperature_length < 1:
            raise ValueError(f"temperature_length={self.temperature_length} must be at least 1 token")
        if self.temperature_scale is not None and not (math.isfinite(self.temperature_scale) and self.temperature_scale > 0):
            raise ValueError(f"temperature_scale={self.temperature_scale} must be a finite number above 0")

    def table(self, head_dim: int, length: int, max_position: int) -> Any:
        seen = np.arange(1, max_position + 1, dtype=np.float64)
        scale = np.ones(max_position)
        if self.log_n_length is not None:
            scale *= np.maximum(1, np.log(seen) / math.log(self.log_n_length))
        if self.temperature_length is not None and self.temperature_scale is not None:
            scale *= 1 + self.temperature_scale * np.log1p(np.floor(seen / self.temperature_length))
        return self.encoding.table(head_dim, length, max_position), scale.astype(np.float32)

    def phases(self, table: Any, positions: jax.Array) -> Any:
        inner, scale = table
        looked_up = jnp.asarray(scale).at[positions].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        return self.encoding.phases(inner, positions), looked_up[:, None, :, None]

    def queries(self, q: jax.Array, phases: Any) -> jax.Array:
        inner, scale = phases
        return (self.encoding.queries(q.astype(jnp.float32), inner) * scale).astype(q.dtype)

    def keys(self, k: jax.Array, phases: Any) -> jax.Array:
        return self.encoding.keys(k, phases[0])
