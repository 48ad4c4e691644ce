"""Plain rotary position embedding."""

from dataclasses import dataclass

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, inverse_powers


@dataclass(frozen=True, kw_only=True)
class RoPE(Variant):
    """Plain RoPE: `theta_i = base ** (-2 i / d)`, `i = 0 .. d/2 - 1`.

    Attributes:
      base: dimensionless; a larger base turns the slow pairs more slowly.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864, section 3.2.2.
    """

    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        return Spectrum(inverse_powers(self.base, head_dim))
