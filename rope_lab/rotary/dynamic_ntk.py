"""NTK-aware interpolation that grows with the context."""

from dataclasses import dataclass

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.ntk import ntk_aware
from rope_lab.rotary.spectrum import Spectrum, check_base, check_factor, check_trained_length


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(Variant):
    """Dynamic NTK: `theta_i = b' ** (-2 i / d)` with `b' = base * (factor * l / T - (factor - 1)) ** (d / (d - 2))`, `l = max(L, T)`.

    L is the length now in context and T the trained one: up to T nothing changes, and beyond it the base grows with every token.
    With `factor = 1` it is NTK scaling by `L / T`.

    Attributes:
      factor: dimensionless, at least 1; at `L = 2 T` the base is that of NTK scaling by `factor + 1`.
      trained_length: T, tokens; the context length of pretraining.
      base: dimensionless, that of the model before extension.

    Source: emozilla, "Dynamically Scaled RoPE further increases performance of long context LLaMA with zero fine-tuning", 2023, and
    transformers' "dynamic". Peng et al., "YaRN", arXiv:2309.00071, section 3.3, scales by `max(1, L / T)` without a factor: here, 1.
    """

    factor: float
    trained_length: int
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_base(self.base)
        check_factor(self.factor)
        check_trained_length(self.trained_length)

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        grown = max(length, self.trained_length) / self.trained_length
        return Spectrum(ntk_aware(self.base, self.factor * grown - (self.factor - 1), head_dim))
