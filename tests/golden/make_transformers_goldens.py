"""What Hugging Face transformers computes for the settings it shares with rope_lab; writes `transformers_rotary.json` beside it.

Run in an environment with torch and transformers (`make reference` makes one):

    .venv/bin/python -m tests.golden.make_transformers_goldens
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.llama import modeling_llama as llama

from tests.rotary.transformers_agreement import rotation_inputs

GOLDEN = Path(__file__).parent / "transformers_rotary.json"
TRAINED = 4096


class Case(NamedTuple):
    """One of our settings, and what transformers calls it."""

    variant: str
    parameters: dict[str, Any]
    head_dim: int
    rope_parameters: dict[str, Any]
    length: int | None = None  # tokens in context, for transformers' dynamic type


def _their_yarn(base: float) -> dict[str, Any]:
    return {"rope_type": "yarn", "rope_theta": base, "factor": 16.0, "original_max_position_embeddings": TRAINED}


def _partial(fraction: float, layout: str, head_dim: int) -> Case:
    rope_type = {"rotated": "default", "proportional": "proportional"}[layout]
    theirs = {"rope_type": rope_type, "rope_theta": 10_000.0, "partial_rotary_factor": fraction}
    return Case("partial", {"fraction": fraction, "layout": layout, "base": 10_000.0}, head_dim, theirs)


_YARN = {"factor": 16.0, "trained_length": TRAINED}
_LLAMA3 = {"trained_length": 8192, "base": 500_000.0}
_THEIR_LLAMA3 = {"rope_theta": 500_000.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LISTS = {"short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.8, 2.6, 4.2], "long_factor": [1.0, 1.3, 2.0, 4.0, 8.0, 16.0, 30.0, 33.0]}

# NTK with a fixed factor s is their "dynamic" type at factor 1 and a context of s times the trained length.
CASES = [
    Case("rope", {"base": 10_000.0}, 128, {"rope_type": "default", "rope_theta": 10_000.0}),
    Case("rope", {"base": 100.0}, 64, {"rope_type": "default", "rope_theta": 100.0}),
    Case("abf", {"base": 500_000.0}, 128, {"rope_type": "default", "rope_theta": 500_000.0}),
    Case("method1", {"base": 5_000_000.0}, 128, {"rope_type": "default", "rope_theta": 5_000_000.0}),
    Case("pi", {"factor": 8.0, "base": 10_000.0}, 128, {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0}),
    Case("pi", {"factor": 2.5, "base": 500_000.0}, 64, {"rope_type": "linear", "rope_theta": 500_000.0, "factor": 2.5}),
    Case("ntk", {"factor": 8.0, "base": 10_000.0}, 128, {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 1.0}, 8 * TRAINED),
    *(
        Case(
            "dynamic_ntk",
            {"factor": 2.0, "trained_length": TRAINED, "base": 10_000.0},
            128,
            {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
            length,
        )
        for length in (TRAINED, 2 * TRAINED)
    ),
    *(
        Case("yarn", {**_YARN, "base": 10_000.0, **changes}, 128, {**_their_yarn(10_000.0), **changes})
        for changes in (
            {},
            {"truncate": False},
            {"attention_factor": 1.1},
            {"mscale": 1.0, "mscale_all_dim": 1.0},
            {"mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 16.0, "beta_slow": 2.0},
        )
    ),
    Case("yarn", {**_YARN, "base": 1_000_000.0}, 64, _their_yarn(1_000_000.0)),
    *(
        Case("llama3", {"factor": factor, **_LLAMA3}, head_dim, {"rope_type": "llama3", "factor": factor, **_THEIR_LLAMA3})
        for factor, head_dim in ((8.0, 128), (32.0, 64))
    ),
    *(
        Case(
            "longrope",
            {**_LISTS, "factor": 32.0, "trained_length": TRAINED, **changes, "base": 10_000.0},
            16,
            {
                **_LISTS,
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "factor": 32.0,
                "original_max_position_embeddings": TRAINED,
                **changes,
            },
            length,
        )
        for length, changes in ((TRAINED, {}), (TRAINED + 1, {}), (8 * TRAINED, {"attention_factor": 1.25}))
    ),
    *(_partial(fraction, layout, 64) for fraction in (0.25, 0.75) for layout in ("rotated", "proportional")),
]
ROTATION_CASES = [
    Case("rope", {"base": 100.0}, 16, {"rope_type": "default", "rope_theta": 100.0}),
    Case("pi", {"factor": 4.0, "base": 10_000.0}, 16, {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}),
    Case("yarn", {**_YARN, "base": 10_000.0}, 16, _their_yarn(10_000.0)),
    _partial(0.5, "rotated", 16),
    _partial(0.5, "proportional", 16),
]


def config(case: Case) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2 * case.head_dim,
        num_attention_heads=2,
        head_dim=case.head_dim,
        max_position_embeddings=TRAINED,
        rope_parameters=case.rope_parameters,
    )


def _family(case: Case) -> type:
    """The rotary module of their Llama, which knows no partial head of the default type, or of GPT-NeoX, which does."""
    return gpt_neox.GPTNeoXRotaryEmbedding if case.variant == "partial" else llama.LlamaRotaryEmbedding


def spectrum(case: Case) -> tuple[np.ndarray, float]:
    """Their inverse frequencies (float32) and attention scaling."""
    if case.rope_parameters["rope_type"] == "default":
        inv_freq, attention_factor = _family(case).compute_default_rope_parameters(config(case))
    else:
        function = ROPE_INIT_FUNCTIONS[case.rope_parameters["rope_type"]]
        inv_freq, attention_factor = function(config(case), device=torch.device("cpu"), seq_len=case.length)
    # Of a partial head they keep the frequencies of what turns alone.
    return np.pad(inv_freq.numpy(), (0, case.head_dim // 2 - len(inv_freq))), float(attention_factor)


def rotation(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Their model's rotated queries and keys, for a case whose frequencies do not depend on the length."""
    q, k, positions = (torch.from_numpy(each) for each in rotation_inputs(case.head_dim))
    cos, sin = _family(case)(config(case))(q, positions)
    turned_q, turned_k = (gpt_neox if case.variant == "partial" else llama).apply_rotary_pos_emb(q, k, cos, sin)
    return turned_q.numpy(), turned_k.numpy()


def compute() -> dict[str, Any]:
    spectra, rotations = [], []
    for case in CASES:
        theta, attention_factor = spectrum(case)
        spectra.append({**case._asdict(), "theta": theta.tolist(), "attention_factor": attention_factor})
    for case in ROTATION_CASES:
        turned_q, turned_k = rotation(case)
        rotations.append({**case._asdict(), "q": turned_q.tolist(), "k": turned_k.tolist()})
    return {"transformers": transformers.__version__, "torch": torch.__version__, "spectra": spectra, "rotations": rotations}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(compute(), indent=1) + "\n")
