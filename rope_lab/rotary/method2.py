"""Method 2 of "Base of RoPE Bounds Context Length": piecewise extension."""

from dataclasses import dataclass

import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, check_factor, inverse_powers


@dataclass(frozen=True, kw_only=True)
class Method2(Variant):
    """Method 2, piecewise in the pair index `i` (with `p = boundary_pair`):

        theta_i = base ** (-2 i / d) / factor                            for i >= p
        theta_i = (base * factor ** (d / (2 p))) ** (-2 i / d)           for i <  p

    Slow pairs are interpolated outright; the fast ones follow the geometric ladder from 1 to the boundary, where both branches
    agree. No phase is out of distribution, yet B_m turns negative well inside the target length.

    Attributes:
      factor: target length over trained length, at least 1.
      boundary_pair: index of the first interpolated *pair* (0 .. d/2 - 1), not dimension; the paper's is 44 at d = 128.
      base: dimensionless, that of the model before extension.

    Source: Men et al., "Base of RoPE Bounds Context Length", arXiv:2405.14591, the two methods compared in Table 4.
    """

    factor: float
    boundary_pair: int
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_factor(self.factor)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        ladder = inverse_powers(self.base, head_dim)
        if not 0 < self.boundary_pair < head_dim // 2:
            raise ValueError(f"boundary_pair={self.boundary_pair} must lie in 1 .. {head_dim // 2 - 1} for {head_dim=}: it counts pairs")
        pairs = np.arange(head_dim // 2)
        joined = ladder * self.factor ** (-pairs / self.boundary_pair)  # the new base to the power -2 i / d, which cannot overflow
        return Spectrum(np.where(pairs < self.boundary_pair, joined, ladder / self.factor))
