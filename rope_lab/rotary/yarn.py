"""YaRN: interpolation by parts, and a temperature on the attention logits."""

import math
from dataclasses import dataclass

import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import (
    Spectrum,
    check_attention_factor,
    check_base,
    check_betas,
    check_factor,
    check_trained_length,
    inverse_powers,
)


@dataclass(frozen=True, kw_only=True)
class YaRN(Variant):
    """YaRN: pairs are kept, blended or interpolated, in this order of the pair index i,

        theta_i' = (1 - ramp_i) theta_i + ramp_i theta_i / factor,  ramp_i = clip((i - low) / (high - low), 0, 1)
        pair(n) = d ln(T / (2 pi n)) / (2 ln base)                  the pair that turns n times within the trained length T
        low = max(floor(pair(beta_fast)), 0),  high = min(ceil(pair(beta_slow)), d - 1)

    and cosine and sine are multiplied by `attention_factor = 0.1 ln(factor) + 1`, so that logits carry its square. Positions are not
    divided.

    Attributes:
      factor: target length over trained length, at least 1.
      trained_length: T, tokens; the context length of pretraining.
      beta_fast: turns in T from which a pair is kept.
      beta_slow: turns in T up to which a pair is interpolated outright.
      truncate: whether `low` and `high` are whole numbers, as above; False keeps the fractions.
      attention_factor: replaces the formula; 1 switches the temperature off.
      mscale, mscale_all_dim: both or neither, above 0; the factor is then the formula with `mscale ln(factor)` for `ln(factor)`, over the
        same with mscale_all_dim.
      base: dimensionless, that of the model before extension.

    Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", arXiv:2309.00071, sections 3.2 and 3.4. The
    paper's ramp is linear in turns (`NTKByParts`); this follows its authors' code and transformers, whose ramp is linear in i, as published
    checkpoints are. Where `high` falls below `low`, the code's ramp turns round (it keeps slow pairs, or interpolates fast ones); here it
    becomes a step at `low`, as it is in theirs where the two are equal. mscale and mscale_all_dim are those of DeepSeek-V2's code.
    """

    factor: float
    trained_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_factor(self.factor)
        check_trained_length(self.trained_length)
        check_betas(self.beta_fast, self.beta_slow)
        check_attention_factor(self.attention_factor)
        given = [each for each in (self.mscale, self.mscale_all_dim) if each is not None]
        if len(given) == 1 or not all(math.isfinite(each) and each > 0 for each in given):
            raise ValueError(f"mscale={self.mscale} and mscale_all_dim={self.mscale_all_dim} must both be finite and above 0, or both None")

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        theta = inverse_powers(self.base, head_dim)

        def pair(turns: float) -> float:
            return head_dim * math.log(self.trained_length / (2 * math.pi * turns)) / (2 * math.log(self.base))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        ramp = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return Spectrum((1 - ramp) * theta + ramp * theta / self.factor, self._attention_factor())

    def _attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        mscale, mscale_all_dim = (1.0, 0.0) if self.mscale is None or self.mscale_all_dim is None else (self.mscale, self.mscale_all_dim)
        return (0.1 * mscale * math.log(self.factor) + 1) / (0.1 * mscale_all_dim * math.log(self.factor) + 1)
