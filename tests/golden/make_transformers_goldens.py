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
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tests.rotary.transformers_agreement import rotation_inputs

GOLDEN = Path(__file__).parent / "transformers_rotary.json"
TRAINED = 4096


class Case(NamedTuple):
    """One of our settings, and what transformers calls it."""

    variant: str
    parameters: dict[str, float]
    head_dim: int
    rope_parameters: dict[str, Any]
    length: int | None = None  # tokens in context, for transformers' dynamic type


# NTK with a fixed factor s is their "dynamic" type at factor 1 and a context of s times the trained length.
CASES = [
    Case("rope", {"base": 10_000.0}, 128, {"rope_type": "default", "rope_theta": 10_000.0}),
    Case("rope", {"base": 100.0}, 64, {"rope_type": "default", "rope_theta": 100.0}),
    Case("abf", {"base": 500_000.0}, 128, {"rope_type": "default", "rope_theta": 500_000.0}),
    Case("method1", {"base": 5_000_000.0}, 128, {"rope_type": "default", "rope_theta": 5_000_000.0}),
    Case("pi", {"factor": 8.0, "base": 10_000.0}, 128, {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0}),
    Case("pi", {"factor": 2.5, "base": 500_000.0}, 64, {"rope_type": "linear", "rope_theta": 500_000.0, "factor": 2.5}),
    Case("ntk", {"factor": 8.0, "base": 10_000.0}, 128, {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 1.0}, 8 * TRAINED),
]
ROTATION_CASES = [
    Case("rope", {"base": 100.0}, 16, {"rope_type": "default", "rope_theta": 100.0}),
    Case("pi", {"factor": 4.0, "base": 10_000.0}, 16, {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}),
]


def config(case: Case) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2 * case.head_dim,
        num_attention_heads=2,
        head_dim=case.head_dim,
        max_position_embeddings=TRAINED,
        rope_parameters=case.rope_parameters,
    )


def spectrum(case: Case) -> tuple[np.ndarray, float]:
    """Their inverse frequencies (float32) and attention scaling."""
    if case.rope_parameters["rope_type"] == "default":
        inv_freq, attention_factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config(case))
    else:
        function = ROPE_INIT_FUNCTIONS[case.rope_parameters["rope_type"]]
        inv_freq, attention_factor = function(config(case), device=torch.device("cpu"), seq_len=case.length)
    return inv_freq.numpy(), float(attention_factor)


def rotation(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Their Llama's rotated queries and keys, for a case whose frequencies do not depend on the length."""
    q, k, positions = (torch.from_numpy(each) for each in rotation_inputs(case.head_dim))
    cos, sin = LlamaRotaryEmbedding(config(case))(q, positions)
    turned_q, turned_k = apply_rotary_pos_emb(q, k, cos, sin)
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
