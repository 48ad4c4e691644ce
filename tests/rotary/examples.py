"""Parameters to try each variant with. A new variant needs one entry in each table; `test_examples.py` says so if it has none."""

import dataclasses
import hashlib
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st

from rope_lab.rotary import VARIANTS, AbstractPositionEncoding, RoPE, Variant

HEAD_DIM = 64
LENGTH = 4096

# The lists of LongRoPE, rising as those of published checkpoints do.
SHORT = tuple(1 + i / 64 for i in range(32))
LONG = tuple(1 + i * i / 16 for i in range(32))

# Files of frequencies, named by their content; gone when the tests are.
_FILES = tempfile.TemporaryDirectory(prefix="rope_lab_frequencies_")


def frequencies_file(content: str, suffix: str = ".json") -> str:
    path = Path(_FILES.name) / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}{suffix}"
    path.write_text(content)
    return str(path)


# One setting a variant, all for heads of HEAD_DIM; none of them trivial (no factor of 1). Where a variant looks at the length, its trained
# length is one that the models in tests/model pass as they decode.
EXAMPLES: dict[str, dict[str, Any]] = {
    "rope": {"base": 10_000.0},
    "pi": {"factor": 8.0, "base": 10_000.0},
    "ntk": {"factor": 8.0, "base": 10_000.0},
    "dynamic_ntk": {"factor": 2.0, "trained_length": 13, "base": 10_000.0},
    "ntk_by_parts": {"factor": 8.0, "trained_length": 2048, "beta_fast": 24.0, "beta_slow": 1.5, "base": 10_000.0},
    "yarn": {
        "factor": 8.0,
        "trained_length": 2048,
        "beta_fast": 24.0,
        "beta_slow": 1.5,
        "truncate": False,
        "attention_factor": None,
        "mscale": 1.2,
        "mscale_all_dim": 0.4,
        "base": 10_000.0,
    },
    "llama3": {"factor": 8.0, "trained_length": 2048, "low_freq_factor": 1.5, "high_freq_factor": 5.0, "base": 500_000.0},
    "longrope": {
        "short_factor": SHORT,
        "long_factor": LONG,
        "factor": 4.0,
        "trained_length": 13,
        "attention_factor": None,
        "base": 10_000.0,
    },
    "abf": {"base": 500_000.0},
    "method1": {"base": 5_000_000.0},
    "method2": {"factor": 8.0, "boundary_pair": 22, "base": 10_000.0},
    "partial": {"fraction": 0.75, "layout": "rotated", "base": 10_000.0},
    "resonance": {"base": 10_000.0},
    "custom": {"path": frequencies_file(json.dumps([0.9**i / (1 + i) for i in range(HEAD_DIM // 2)]))},
    "xpos": {"scale_base": 65_536.0, "base": 10_000.0},
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
BAD_LENGTHS = [
    (
        {"trained_length": T},
        HEAD_DIM,
        f"trained_length={T} must be at least 1: the context length in tokens that the model was pretrained with",
    )
    for T in (0, -1)
]
BAD_ATTENTION = [
    ({"attention_factor": m}, HEAD_DIM, f"attention_factor={m} must be a finite number above 0, or None for the formula's own")
    for m in (0.0, -1.0, NAN, INF)
]
BAD_BETAS = [
    (
        {"beta_fast": fast, "beta_slow": slow},
        HEAD_DIM,
        f"beta_fast={fast} and beta_slow={slow} must satisfy 0 < beta_slow < beta_fast: turns within the trained length",
    )
    for fast, slow in ((1.0, 32.0), (2.0, 2.0), (32.0, 0.0), (32.0, -1.0), (NAN, 1.0), (32.0, NAN), (INF, 1.0))
]
NTK_HEADS = [
    ({}, 63, f"head_dim=63 {_HEAD}"),
    *(({}, d, f"head_dim={d} must be at least 4 for NTK scaling: its exponent is d / (d - 2)") for d in (2, 0, -64)),
]
BAD_FILES = [
    (frequencies_file("[1.0, 0.5]"), "holds frequencies of shape (2,), but head_dim=64 needs (32,): one for each pair"),
    (frequencies_file(json.dumps([[1.0] * 32])), "holds frequencies of shape (1, 32), but head_dim=64 needs (32,): one for each pair"),
    *(
        (
            frequencies_file(json.dumps([1.0, 0.5, value, *[0.1] * 29])),
            f"holds theta[2]={value}; a frequency must be a finite number of at least 0, radians per token",
        )
        for value in (NAN, INF, -0.25)
    ),
    (frequencies_file(json.dumps(["1.0"] * 32)), "must hold one list of numbers: it holds <U3"),
    (frequencies_file("[1.0,"), "must hold one list of numbers: Expecting value: line 1 column 6 (char 5)"),
]

BAD: dict[str, list[tuple[dict[str, Any], int, str]]] = {
    "rope": [*BAD_HEADS, *BAD_BASES],
    "pi": [*BAD_HEADS, *BAD_BASES, *BAD_FACTORS],
    "ntk": [*NTK_HEADS, *BAD_BASES, *BAD_FACTORS],
    "dynamic_ntk": [*NTK_HEADS, *BAD_BASES, *BAD_FACTORS, *BAD_LENGTHS],
    "ntk_by_parts": [*BAD_HEADS, *BAD_BASES, *BAD_FACTORS, *BAD_LENGTHS, *BAD_BETAS],
    "yarn": [
        *BAD_HEADS,
        *BAD_BASES,
        *BAD_FACTORS,
        *BAD_LENGTHS,
        *BAD_BETAS,
        *BAD_ATTENTION,
        *(
            (
                {"mscale": one, "mscale_all_dim": other},
                HEAD_DIM,
                f"mscale={one} and mscale_all_dim={other} must both be finite and above 0, or both None",
            )
            for one, other in ((1.0, None), (None, 1.0), (0.0, 1.0), (1.0, -1.0), (NAN, 1.0), (1.0, INF))
        ),
    ],
    "llama3": [
        *BAD_HEADS,
        *BAD_BASES,
        *BAD_FACTORS,
        *BAD_LENGTHS,
        *(
            (
                {"low_freq_factor": low, "high_freq_factor": high},
                HEAD_DIM,
                f"low_freq_factor={low} and high_freq_factor={high} must satisfy 0 < low_freq_factor < high_freq_factor: "
                "turns within the trained length",
            )
            for low, high in ((4.0, 1.0), (2.0, 2.0), (0.0, 4.0), (-1.0, 4.0), (NAN, 4.0), (1.0, NAN), (1.0, INF))
        ),
    ],
    "longrope": [
        *BAD_HEADS,
        *BAD_BASES,
        *BAD_FACTORS,
        *BAD_LENGTHS,
        *BAD_ATTENTION,
        (
            {"trained_length": 1},
            HEAD_DIM,
            "trained_length=1 must be at least 2 for LongRoPE: its attention factor divides by the logarithm",
        ),
        *(
            (
                {name: (1.0, value)},
                HEAD_DIM,
                f"{name}[1]={value} must be a finite number above 0: it divides the frequency of pair 1",
            )
            for name in ("short_factor", "long_factor")
            for value in (0.0, -2.0, NAN, INF)
        ),
        *(
            ({name: (1.0,) * n}, HEAD_DIM, f"{name} has {n} entries, but head_dim=64 has 32 pairs and needs one for each")
            for name in ("short_factor", "long_factor")
            for n in (0, 31, 64)
        ),
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
    "partial": [
        *BAD_HEADS,
        *BAD_BASES,
        *(
            ({"fraction": f}, HEAD_DIM, f"fraction={f} must lie above 0 and be at most 1: the share of a head's dimensions that turn")
            for f in (0.0, -0.5, 1.5, NAN)
        ),
        *(
            ({"fraction": f}, d, f"fraction={f} of head_dim={d} is {n} dimensions; it must be an even whole number")
            for f, d, n in ((0.25, 4, 1), (0.3, 64, 19.2), (0.75, 2, 1.5), (1e-3, 64, 0.064))
        ),
        ({"layout": "half"}, HEAD_DIM, "layout='half' must be 'rotated' or 'proportional'"),
    ],
    "resonance": [*BAD_HEADS, *BAD_BASES],
    "custom": [
        *BAD_HEADS,
        *(({"path": path}, HEAD_DIM, f"{path!r} {message}") for path, message in BAD_FILES),
        *(
            ({"path": path}, HEAD_DIM, f"path={path!r} must be an existing .json or .npy file of frequencies in radians per token")
            for path in ("no/such/file.json", "no/such/file.npy", "pyproject.toml", "")
        ),
    ],
    "xpos": [
        *BAD_HEADS,
        *BAD_BASES,
        *(
            (
                {"scale_base": s},
                HEAD_DIM,
                f"scale_base={s} must be a finite number above 0: tokens over which a pair fades (512 in the paper)",
            )
            for s in (0.0, -512.0, NAN, INF)
        ),
        (
            {"scale_base": 64.0},
            HEAD_DIM,
            "scale_base=64.0 fades too fast for 4096 positions: their scales would overflow; set scale_base to at least 67",
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
# These look at the length in context.
DYNAMIC = ["dynamic_ntk", "longrope"]
# xPos shortens and lengthens what it turns; its laws are in test_xpos.py.
ISOMETRIC = [name for name in ALL if name != "xpos"]
# A factor fixes these between RoPE and interpolation. That of dynamic NTK is of the length's growth, that of LongRoPE of logits alone.
EXTENDING = [name for name in ALL if "factor" in fields(name) and name not in DYNAMIC]
# Frequencies that fall from pair to pair; those of LongRoPE and of a file are whatever their lists say.
FALLING = [name for name in SPECTRAL if name not in ("longrope", "custom")]


@st.composite
def settings(
    draw: st.DrawFn, name: str, head_dims: Sequence[int] = range(4, 257, 2)
) -> tuple[AbstractPositionEncoding, dict[str, Any], int]:
    """A variant with random parameters, those parameters, and a head_dim they fit."""
    head_dim = draw(st.sampled_from(head_dims))
    pairs = head_dim // 2
    divisors = st.lists(st.floats(0.5, 64.0), min_size=pairs, max_size=pairs).map(tuple)
    of_field = {
        "base": st.floats(1.5, 1e9),
        "factor": st.floats(1.0, 64.0),
        "boundary_pair": st.integers(1, pairs - 1),
        "trained_length": st.integers(2, 1 << 20),
        "beta_fast": st.floats(8.0, 64.0),
        "beta_slow": st.floats(0.25, 4.0),
        "truncate": st.booleans(),
        "attention_factor": st.none() | st.floats(0.5, 2.0),
        "mscale": st.none(),
        "mscale_all_dim": st.none(),
        "low_freq_factor": st.floats(0.5, 2.0),
        "high_freq_factor": st.floats(3.0, 8.0),
        "short_factor": divisors,
        "long_factor": divisors,
        "fraction": st.integers(1, pairs).map(lambda turning: turning / pairs),
        "layout": st.sampled_from(["rotated", "proportional"]),
        "path": st.lists(st.floats(0.0, 3.0), min_size=pairs, max_size=pairs).map(json.dumps).map(frequencies_file),
        "scale_base": st.floats(32_768.0, 1e6),
    }
    parameters = {field: draw(of_field[field]) for field in sorted(fields(name))}
    if "mscale" in parameters and draw(st.booleans()):
        parameters |= {field: draw(st.floats(0.1, 2.0)) for field in ("mscale", "mscale_all_dim")}
    state = random.getstate()  # beartype looks at a random entry of a tuple, and hypothesis allows no strategy to move the state
    variant = VARIANTS[name](**parameters)
    random.setstate(state)
    return variant, parameters, head_dim
