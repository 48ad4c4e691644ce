"""Logits of Hugging Face transformers for small models; writes `transformers_logits.npz` beside it.

Run in an environment with torch and transformers (`make reference` makes one):

    .venv/bin/python -m tests.golden.make_transformers_logits
"""

from pathlib import Path

import numpy as np
import torch
import transformers

from tests.model.transformers_agreement import CASES, TOKENS, Case, named_as_theirs, parameters

GOLDEN = Path(__file__).parent / "transformers_logits.npz"


def theirs(case: Case) -> np.ndarray:
    """float32 logits of the tokens, shape `(2, 40, 61)`."""
    shape = case.config
    config = getattr(transformers, f"{case.theirs}Config")(
        vocab_size=shape.vocab_size,
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.mlp_size,
        tie_word_embeddings=shape.tie_embeddings,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters=case.rope,
        max_position_embeddings=64,
        attn_implementation="eager",
        **({"no_rope_layer_interval": shape.nope_every, "pad_token_id": None} if shape.nope_every else {}),
    )
    model = getattr(transformers, f"{case.theirs}ForCausalLM")(config).eval()
    weights = {name: torch.from_numpy(value) for name, value in named_as_theirs(shape, parameters(shape)).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert not missing, missing
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS).long()).logits.numpy()


if __name__ == "__main__":
    np.savez(GOLDEN, allow_pickle=False, **{name: theirs(case) for name, case in CASES.items()})
