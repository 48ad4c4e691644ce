"""RoPE with an adjusted base frequency."""

from dataclasses import dataclass

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, inverse_powers


@dataclass(frozen=True, kw_only=True)
class ABF(Variant):
    """Adjusted base frequency: `theta_i = base ** (-2 i / d)`, with the base raised before continued pretraining.

    Attributes:
      base: dimensionless; 500,000 takes Llama 2 from 4,096 to 32,768 tokens in the paper.

    Source: Xiong et al., "Effective Long-Context Scaling of Foundation Models", arXiv:2309.16039, section 2.2 and appendix B.
    """

    base: float = 500_000.0

    def __post_init__(self) -> None:
        check_base(self.base)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        return Spectrum(inverse_powers(self.base, head_dim))
