"""Rotary variants: one file each; a variant is a frozen value, and `VARIANTS` is how a config names it.

To add one: write its file, add a line to `VARIANTS`, and write its reference function in `tests/reference.py`; the
config fields, the command-line flags and the parametrised tests follow from the dataclass.
"""

from rope_lab.rotary.abf import ABF
from rope_lab.rotary.custom import Custom
from rope_lab.rotary.dynamic_ntk import DynamicNTK
from rope_lab.rotary.encoding import AbstractPositionEncoding, Variant
from rope_lab.rotary.llama3 import Llama3
from rope_lab.rotary.longrope import LongRoPE
from rope_lab.rotary.method1 import Method1
from rope_lab.rotary.method2 import Method2
from rope_lab.rotary.none import NoPE
from rope_lab.rotary.ntk import NTK
from rope_lab.rotary.ntk_by_parts import NTKByParts
from rope_lab.rotary.partial import Partial
from rope_lab.rotary.pi import PI
from rope_lab.rotary.resonance import Resonance
from rope_lab.rotary.rope import RoPE
from rope_lab.rotary.rotate import PhaseTable, cos_sin, phase_table, rotate
from rope_lab.rotary.scaled import Scaled
from rope_lab.rotary.spectrum import Spectrum, inverse_powers
from rope_lab.rotary.xpos import XPos
from rope_lab.rotary.yarn import YaRN

VARIANTS: dict[str, type[AbstractPositionEncoding]] = {
    "rope": RoPE,
    "pi": PI,
    "ntk": NTK,
    "dynamic_ntk": DynamicNTK,
    "ntk_by_parts": NTKByParts,
    "yarn": YaRN,
    "llama3": Llama3,
    "longrope": LongRoPE,
    "abf": ABF,
    "method1": Method1,
    "method2": Method2,
    "partial": Partial,
    "resonance": Resonance,
    "custom": Custom,
    "xpos": XPos,
    "none": NoPE,
}

__all__ = [
    "ABF",
    "NTK",
    "PI",
    "VARIANTS",
    "AbstractPositionEncoding",
    "Custom",
    "DynamicNTK",
    "Llama3",
    "LongRoPE",
    "Method1",
    "Method2",
    "NTKByParts",
    "NoPE",
    "Partial",
    "PhaseTable",
    "Resonance",
    "RoPE",
    "Scaled",
    "Spectrum",
    "Variant",
    "XPos",
    "YaRN",
    "cos_sin",
    "inverse_powers",
    "phase_table",
    "rotate",
]
