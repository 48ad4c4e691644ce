"""NTK-by-parts interpolation: each pair by how often it turns in training."""

import math
from dataclasses import dataclass

import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_base, check_betas, check_factor, check_trained_length, inverse_powers


@dataclass(frozen=True, kw_only=True)
class NTKByParts(Variant):
    """NTK-by-parts: with `r_i = T theta_i / (2 pi)` turns of pair i within the trained length T,

        theta_i' = (1 - g) theta_i / factor + g theta_i
        g = clip((r_i - beta_slow) / (beta_fast - beta_slow), 0, 1)

    Pairs that turn often tell near positions apart and are kept; those that turn less than `beta_slow` times are interpolated.

    Attributes:
      factor: target length over trained length, at least 1.
      trained_length: T, tokens; the context length of pretraining.
      beta_fast: turns in T from which a pair is kept; the paper's beta, 32 for Llama.
      beta_slow: turns in T up to which a pair is interpolated outright; the paper's alpha, 1 for Llama.
      base: dimensionless, that of the model before extension.

    Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", arXiv:2309.00071, section 3.2. This is the
    paper's ramp, linear in turns; its authors' code, and transformers, run the ramp over pair indices instead: see `YaRN`.
    """

    factor: float
    trained_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_factor(self.factor)
        check_trained_length(self.trained_length)
        check_betas(self.beta_fast, self.beta_slow)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        theta = inverse_powers(self.base, head_dim)
        turns = self.trained_length * theta / (2 * math.pi)
        kept = np.clip((turns - self.beta_slow) / (self.beta_fast - self.beta_slow), 0, 1)
        return Spectrum((1 - kept) * theta / self.factor + kept * theta)
