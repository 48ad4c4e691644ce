"""Position interpolation."""

from dataclasses import dataclass

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, check_factor, inverse_powers


@dataclass(frozen=True, kw_only=True)
class PI(Variant):
    """Position interpolation: `theta_i = base ** (-2 i / d) / factor`.

    Dividing every frequency is the same as dividing every position, so that the target length shows only trained phases.

    Attributes:
      factor: target length over trained length, at least 1.
      base: dimensionless, that of the model before extension.

    Source: Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", arXiv:2306.15595, Eq. 4.
    """

    factor: float
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_factor(self.factor)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        return Spectrum(inverse_powers(self.base, head_dim) / self.factor)
