"""RoPE with whole-numbered wavelengths."""

import math
from dataclasses import dataclass

import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, inverse_powers


@dataclass(frozen=True, kw_only=True)
class Resonance(Variant):
    """Resonance RoPE: `theta_i = 2 pi / round(2 pi base ** (2 i / d))`, so that each pair comes back to exactly the same angle.

    A pair that completes a turn within the trained length then shows no angle beyond it that it has not shown before.

    Attributes:
      base: dimensionless; wavelengths are rounded to whole tokens.

    Source: Wang et al., "Resonance RoPE: Improving Context Length Generalization of Large Language Models", arXiv:2403.00071, section 4.
    Halves round to even, as in its authors' code.
    """

    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        return Spectrum(2 * math.pi / np.round(2 * math.pi / inverse_powers(self.base, head_dim)))
