"""Rotary variants: one file each; a variant is a frozen value, and `VARIANTS` is how a config names it.

To add one: write its file, add a line to `VARIANTS`, and write its reference function in `tests/reference.py`; the
config fields, the command-line flags and the parametrised tests follow from the dataclass.
"""

from rope_lab.rotary.abf import ABF
from rope_lab.rotary.encoding import AbstractPositionEncoding, Variant
from rope_lab.rotary.method1 import Method1
from rope_lab.rotary.method2 import Method2
from rope_lab.rotary.none import NoPE
from rope_lab.rotary.ntk import NTK
from rope_lab.rotary.pi import PI
from rope_lab.rotary.rope import RoPE
from rope_lab.rotary.rotate import PhaseTable, cos_sin, phase_table, rotate
from rope_lab.rotary.spectrum import Spectrum, inverse_powers

VARIANTS: dict[str, type[AbstractPositionEncoding]] = {
    "rope": RoPE,
    "pi": PI,
    "ntk": NTK,
    "abf": ABF,
    "method1": Method1,
    "method2": Method2,
    "none": NoPE,
}

__all__ = [
    "ABF",
    "NTK",
    "PI",
    "VARIANTS",
    "AbstractPositionEncoding",
    "Method1",
    "Method2",
    "NoPE",
    "PhaseTable",
    "RoPE",
    "Spectrum",
    "Variant",
    "cos_sin",
    "inverse_powers",
    "phase_table",
    "rotate",
]
