"""NTK-aware interpolation with a fixed factor."""

from dataclasses import dataclass

import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, check_factor, inverse_powers


@dataclass(frozen=True, kw_only=True)
class NTK(Variant):
    """NTK-aware scaling: `theta_i = b' ** (-2 i / d)` with `b' = base * factor ** (d / (d - 2))`.

    The fastest pair is untouched and the slowest is divided by exactly `factor`; every pair between is divided by less,
    so at the target length most slow pairs still see phases they were not trained on.

    Attributes:
      factor: target length over trained length, at least 1.
      base: dimensionless, that of the model before extension.

    Source: bloc97, "NTK-Aware Scaled RoPE", 2023; restated in Peng et al., "YaRN", arXiv:2309.00071, section 3.1.
    """

    factor: float
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_factor(self.factor)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        return Spectrum(ntk_aware(self.base, self.factor, head_dim))


def ntk_aware(base: float, factor: float, head_dim: int) -> np.ndarray:
    """Frequencies on the base `base * factor ** (d / (d - 2))`, as a product that no base or factor can overflow."""
    if head_dim <= 2:
        raise ValueError(f"{head_dim=} must be at least 4 for NTK scaling: its exponent is d / (d - 2)")
    return inverse_powers(base, head_dim) * factor ** (-2.0 * np.arange(head_dim // 2) / (head_dim - 2))
