"""What attention asks of a position encoding, and the family that answers with frequencies alone.

Shape letters: B batch, T length, H heads, D head dim.
"""

import abc
from typing import Any

import jax

from rope_lab.rotary.rotate import cos_sin, phase_table, rotate
from rope_lab.rotary.spectrum import Spectrum


class AbstractPositionEncoding(abc.ABC):
    """A frozen value that tells attention how positions enter queries and keys.

    Used in three moves, so that the host's float64 work happens once, the phases are shared by all layers, and a key that
    was cached unrotated can be turned by whatever spectrum the current length asks for:

        table = encoding.table(head_dim, length, max_position)      # host, NumPy
        phases = encoding.phases(table, positions_BT)               # inside jit, once a forward pass
        q, k = encoding.queries(q, phases), encoding.keys(k, phases)  # inside each layer
    """

    @abc.abstractmethod
    def table(self, head_dim: int, length: int, max_position: int) -> Any:
        """Host-side constants for contexts of `length` tokens whose positions stay below `max_position`: a pytree of arrays."""

    @abc.abstractmethod
    def phases(self, table: Any, positions: jax.Array) -> Any:
        """What `queries` and `keys` need at these positions (shape `(B, T)`): a pytree of float32 arrays."""

    @abc.abstractmethod
    def queries(self, q: jax.Array, phases: Any) -> jax.Array:
        """Encodes queries of shape `(B, H, T, D)`."""

    @abc.abstractmethod
    def keys(self, k: jax.Array, phases: Any) -> jax.Array:
        """Encodes keys of shape `(B, H, T, D)`."""


class Variant(AbstractPositionEncoding):
    """A rotary variant that is its spectrum and nothing else. Subclasses are frozen, keyword-only dataclasses."""

    @abc.abstractmethod
    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        """The frequencies used when the whole context is `length` tokens long.

        Args:
          head_dim: dimensions of one attention head, even.
          length: tokens now in context; only dynamic variants look at it.

        Raises:
          ValueError: if `head_dim` is not a positive even number or does not fit the variant.
        """

    def table(self, head_dim: int, length: int, max_position: int) -> Any:
        return phase_table(self.spectrum(head_dim, length), max_position)

    def phases(self, table: Any, positions: jax.Array) -> Any:
        cos, sin = cos_sin(table, positions)
        return cos[:, None], sin[:, None]  # one axis for the heads

    def queries(self, q: jax.Array, phases: Any) -> jax.Array:
        return rotate(q, *phases)

    def keys(self, k: jax.Array, phases: Any) -> jax.Array:
        return rotate(k, *phases)
