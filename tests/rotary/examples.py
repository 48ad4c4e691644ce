"""Parameters to try each variant with. A new variant needs one entry in each table; `test_examples.py` says so if it has none."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st

from rope_lab.rotary import VARIANTS, AbstractPositionEncoding, RoPE, Variant

HEAD_DIM = 64
LENGTH = 4096

# One setting a variant, all for heads of HEAD_DIM; none of them trivial (no factor of 1).
EXAMPLES: dict[str, dict[str, Any]] = {
    "rope": {"base": 10_000.0},
    "pi": {"factor": 8.0, "base": 10_000.0},
    "ntk": {"factor": 8.0, "base": 10_000.0},
    "abf": {"base": 500_000.0},
    "method1": {"base": 5_000_000.0},
    "method2": {"factor": 8.0, "boundary_pair": 22, "base": 10_000.0},
    "none": {},
}

_HEAD = "must be a positive even number: rotary embeddings turn dimensions in pairs"
_BASE = "must be a finite number above 1 (10000 in the original RoPE)"
_FACTOR = "must be a finite number of at least 1: target length over trained length"
NAN, INF = float("nan"), float("inf")

# What a user can get wrong: changes to the example, the head_dim, and the whole message.
BAD_HEADS = [({}, 63, f"head_dim=63 {_HEAD}"), ({}, 0, f"head_dim=0 {_HEAD}"), ({}, -64, f"head_dim=-64 {_HEAD}")]
BAD_BASES = [({"base": base}, HEAD_DIM, f"base={base} {_BASE}") for base in (1.0, 0.5, 0.0, -10_000.0, NAN, INF)]
BAD_FACTORS = [({"factor": factor}, HEAD_DIM, f"factor={factor} {_FACTOR}") for factor in (0.99, 0.0, -8.0, NAN, INF)]

BAD: dict[str, list[tuple[dict[str, Any], int, str]]] = {
    "rope": [*BAD_HEADS, *BAD_BASES],
    "pi": [*BAD_HEADS, *BAD_BASES, *BAD_FACTORS],
    "ntk": [
        *BAD_BASES,
        *BAD_FACTORS,
        ({}, 63, f"head_dim=63 {_HEAD}"),
        *(({}, d, f"head_dim={d} must be at least 4 for NTK scaling: its exponent is d / (d - 2)") for d in (2, 0, -64)),
    ],
    "abf": [*BAD_HEADS, *BAD_BASES],
    "method1": [*BAD_HEADS, *BAD_BASES],
    "method2": [
        *BAD_HEADS,
        *BAD_BASES,
        *BAD_FACTORS,
        *(
            ({"boundary_pair": p}, HEAD_DIM, f"boundary_pair={p} must lie in 1 .. 31 for head_dim=64: it counts pairs")
            for p in (0, 32, 64, -1)
        ),
    ],
    "none": [],
}


def example(name: str) -> AbstractPositionEncoding:
    return VARIANTS[name](**EXAMPLES[name])


def spectral(name: str) -> bool:
    """Whether the variant is its frequencies and nothing else."""
    return issubclass(VARIANTS[name], Variant)


def fields(name: str) -> set[str]:
    return {field.name for field in dataclasses.fields(VARIANTS[name])}  # pyright: ignore[reportArgumentType]


def plain(variant: AbstractPositionEncoding) -> RoPE:
    """Plain RoPE on the same base."""
    return RoPE(base=variant.base)  # pyright: ignore[reportAttributeAccessIssue]


ALL = sorted(VARIANTS)
SPECTRAL = [name for name in ALL if spectral(name)]
BASED = [name for name in ALL if "base" in fields(name)]
EXTENDING = [name for name in ALL if "factor" in fields(name)]


@st.composite
def settings(
    draw: st.DrawFn, name: str, head_dims: Sequence[int] = range(4, 257, 2)
) -> tuple[AbstractPositionEncoding, dict[str, Any], int]:
    """A variant with random parameters, those parameters, and a head_dim they fit."""
    head_dim = draw(st.sampled_from(head_dims))
    of_field = {
        "base": st.floats(1.5, 1e9),
        "factor": st.floats(1.0, 64.0),
        "boundary_pair": st.integers(1, head_dim // 2 - 1),
    }
    parameters = {field: draw(of_field[field]) for field in sorted(fields(name))}
    return VARIANTS[name](**parameters), parameters, head_dim
