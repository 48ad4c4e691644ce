"""Method 1 of "Base of RoPE Bounds Context Length": extension by a larger base."""

from dataclasses import dataclass

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, inverse_powers


@dataclass(frozen=True, kw_only=True)
class Method1(Variant):
    """Method 1: `theta_i = base ** (-2 i / d)` with a base far above the bound for the target length.

    The counterpart of `Method2`: no phase at the target length is new to either, but here B_m never turns negative.

    Attributes:
      base: dimensionless; the paper takes Llama 2 (base 10,000) to 5,000,000.

    Source: Men et al., "Base of RoPE Bounds Context Length", arXiv:2405.14591, the two methods compared in Table 4.
    """

    base: float = 5_000_000.0

    def __post_init__(self) -> None:
        check_base(self.base)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        return Spectrum(inverse_powers(self.base, head_dim))
