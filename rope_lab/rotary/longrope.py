"""LongRoPE: a searched divisor for every pair, one set for short contexts and one for long."""

import math
from dataclasses import dataclass

import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, check_attention_factor, check_base, check_factor, check_trained_length, inverse_powers


@dataclass(frozen=True, kw_only=True)
class LongRoPE(Variant):
    """LongRoPE: `theta_i = base ** (-2 i / d) / short_factor[i]` for contexts up to the trained length T, `/ long_factor[i]` beyond.

    Cosine and sine are multiplied by `sqrt(1 + ln(factor) / ln(T))` in both cases, so that logits carry its square.

    Attributes:
      short_factor, long_factor: d / 2 divisors each, above 0, found by search; they come with a checkpoint.
      factor: target length over trained length, at least 1; it enters the attention factor alone.
      trained_length: T, tokens, at least 2; the context length of pretraining.
      attention_factor: replaces the formula.
      base: dimensionless, that of the model before extension.

    Source: Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", arXiv:2402.13753, section 3. The paper also
    leaves the first tokens of a context uninterpolated; the Phi-3 checkpoints, transformers and this do not. The attention factor is that
    of the checkpoints' code.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    factor: float
    trained_length: int
    attention_factor: float | None = None
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_factor(self.factor)
        check_trained_length(self.trained_length)
        if self.trained_length == 1:
            raise ValueError("trained_length=1 must be at least 2 for LongRoPE: its attention factor divides by the logarithm")
        check_attention_factor(self.attention_factor)
        for name in ("short_factor", "long_factor"):
            for i, divisor in enumerate(getattr(self, name)):
                if not (math.isfinite(divisor) and divisor > 0):
                    raise ValueError(f"{name}[{i}]={divisor} must be a finite number above 0: it divides the frequency of pair {i}")

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        ladder = inverse_powers(self.base, head_dim)
        for name in ("short_factor", "long_factor"):
            if (entries := len(getattr(self, name))) != head_dim // 2:
                raise ValueError(f"{name} has {entries} entries, but {head_dim=} has {head_dim // 2} pairs and needs one for each")
        divisors = self.long_factor if length > self.trained_length else self.short_factor
        formula = math.sqrt(1 + math.log(self.factor) / math.log(self.trained_length))
        return Spectrum(ladder / np.array(divisors, np.float64), formula if self.attention_factor is None else self.attention_factor)
