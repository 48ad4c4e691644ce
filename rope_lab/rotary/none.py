"""No position encoding."""

from dataclasses import dataclass
from typing import Any

import jax

from rope_lab.rotary.encoding import AbstractPositionEncoding


@dataclass(frozen=True, kw_only=True)
class NoPE(AbstractPositionEncoding):
    """No position encoding: queries and keys pass unchanged, and only the causal mask tells order.

    Source: Kazemnejad et al., "The Impact of Positional Encoding on Length Generalization in Transformers", arXiv:2305.19466.
    """

    def table(self, head_dim: int, length: int, max_position: int) -> Any:
        return ()

    def phases(self, table: Any, positions: jax.Array) -> Any:
        return ()

    def queries(self, q: jax.Array, phases: Any) -> jax.Array:
        return q

    def keys(self, k: jax.Array, phases: Any) -> jax.Array:
        return k
