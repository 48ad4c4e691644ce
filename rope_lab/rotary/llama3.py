"""The scaling of Llama 3.1 and 3.2."""

import math
from dataclasses import dataclass

import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, check_factor, check_trained_length, inverse_powers


@dataclass(frozen=True, kw_only=True)
class Llama3(Variant):
    """Llama 3 scaling, three bands by `r_i = T theta_i / (2 pi)`, the turns of pair i within the trained length T:

        theta_i' = (1 - s) theta_i / factor + s theta_i
        s = clip((r_i - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)

    Attributes:
      factor: dimensionless, at least 1; slow pairs are divided by it.
      trained_length: T, tokens; 8,192 for Llama 3.1 and 3.2.
      low_freq_factor: turns in T up to which a pair is divided outright.
      high_freq_factor: turns in T from which a pair is kept.
      base: dimensionless, that of the model before extension.

    Source: the code that Meta published with Llama 3.1, and transformers' "llama3". No paper has the formula: Grattafiori et al., "The
    Llama 3 Herd of Models", arXiv:2407.21783, tells of the base alone.
    """

    factor: float
    trained_length: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    base: float = 500_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_factor(self.factor)
        check_trained_length(self.trained_length)
        if not (math.isfinite(self.high_freq_factor) and 0 < self.low_freq_factor < self.high_freq_factor):
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor} and high_freq_factor={self.high_freq_factor} must satisfy "
                "0 < low_freq_factor < high_freq_factor: turns within the trained length"
            )

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        theta = inverse_powers(self.base, head_dim)
        turns = self.trained_length * theta / (2 * math.pi)
        kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return Spectrum((1 - kept) * theta / self.factor + kept * theta)
