"""Models that Hugging Face transformers has too: its names for them, and for our parameters. Needs neither torch nor transformers."""

from typing import Any, NamedTuple

import numpy as np

from rope_lab.model.llama import LlamaConfig
from rope_lab.rotary import PI, AbstractPositionEncoding, RoPE

TOKENS = np.random.default_rng(7).integers(0, 61, (2, 40)).astype(np.int32)


class Case(NamedTuple):
    """One architecture: ours, and the class and extra config fields of theirs."""

    config: LlamaConfig
    encoding: AbstractPositionEncoding
    theirs: str
    rope: dict[str, Any]


def _config(**changes: Any) -> LlamaConfig:
    shape = {"vocab_size": 61, "num_layers": 3, "hidden_size": 48, "num_heads": 6, "num_kv_heads": 2, "head_dim": 16, "mlp_size": 40}
    return LlamaConfig(**(shape | {"compute_dtype": "float32", "norm_epsilon": 1e-5} | changes))


CASES = {
    "llama": Case(_config(), RoPE(base=1e4), "Llama", {"rope_type": "default", "rope_theta": 1e4}),
    "llama_tied_pi": Case(_config(tie_embeddings=True), PI(factor=4.0), "Llama", {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "qwen2_bias": Case(_config(attention_bias=True), RoPE(base=1e6), "Qwen2", {"rope_type": "default", "rope_theta": 1e6}),
    "smollm3_nope": Case(
        _config(nope_every=2, tie_embeddings=True), RoPE(base=1e6), "SmolLM3", {"rope_type": "default", "rope_theta": 1e6}
    ),
    "qwen3_norm": Case(_config(query_key_norm=True), RoPE(base=1e6), "Qwen3", {"rope_type": "default", "rope_theta": 1e6}),
}


def parameters(config: LlamaConfig) -> dict[str, Any]:
    """Random parameters in our tree, norms and biases too: a pure function of the shape."""
    rng = np.random.default_rng(0)
    L, M, F, D = config.num_layers, config.hidden_size, config.mlp_size, config.head_dim
    H, K, V = config.num_heads, config.num_kv_heads, config.vocab_size

    def normal(*shape: int, std: float = 0.3) -> np.ndarray:
        return (std * rng.normal(size=shape)).astype(np.float32)

    def scale(*shape: int) -> dict[str, np.ndarray]:
        return {"scale": 1 + normal(*shape)}

    attention = {"query": normal(L, M, H, D), "key": normal(L, M, K, D), "value": normal(L, M, K, D), "out": normal(L, H, D, M)}
    if config.attention_bias:
        attention |= {"query_bias": normal(L, H, D), "key_bias": normal(L, K, D), "value_bias": normal(L, K, D)}
    if config.query_key_norm:
        attention |= {"query_norm": scale(L, D), "key_norm": scale(L, D)}
    mlp = {"gate": normal(L, M, F), "up": normal(L, M, F), "down": normal(L, F, M)}
    layers = {"attention_norm": scale(L, M), "attention": attention, "mlp_norm": scale(L, M), "mlp": mlp}
    tree = {"embedding": normal(V, M, std=1.0), "layers": layers, "norm": scale(M)}
    return tree if config.tie_embeddings else tree | {"output": normal(M, V)}


def named_as_theirs(config: LlamaConfig, params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Our parameters as transformers' state dict: matrices transposed, heads flattened."""
    M = config.hidden_size
    result = {"model.embed_tokens.weight": params["embedding"], "model.norm.weight": params["norm"]["scale"]}
    result["lm_head.weight"] = params["embedding"] if config.tie_embeddings else params["output"].T
    for i in range(config.num_layers):
        layer = params["layers"]
        attention, mlp, prefix = layer["attention"], layer["mlp"], f"model.layers.{i}"
        for ours, name in (("query", "q"), ("key", "k"), ("value", "v")):
            result[f"{prefix}.self_attn.{name}_proj.weight"] = attention[ours][i].reshape(M, -1).T
            if config.attention_bias:
                result[f"{prefix}.self_attn.{name}_proj.bias"] = attention[f"{ours}_bias"][i].ravel()
            if config.query_key_norm and ours != "value":
                result[f"{prefix}.self_attn.{name}_norm.weight"] = attention[f"{ours}_norm"]["scale"][i]
        result[f"{prefix}.self_attn.o_proj.weight"] = attention["out"][i].reshape(-1, M).T
        for name in ("gate", "up", "down"):
            result[f"{prefix}.mlp.{name}_proj.weight"] = mlp[name][i].T
        result[f"{prefix}.input_layernorm.weight"] = layer["attention_norm"]["scale"][i]
        result[f"{prefix}.post_attention_layernorm.weight"] = layer["mlp_norm"]["scale"][i]
    return {name: np.ascontiguousarray(value) for name, value in result.items()}
