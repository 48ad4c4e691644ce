"""How much arithmetic a model needs, for throughput and hardware use."""

import math

import jax

from rope_lab.model.llama import LlamaConfig


def parameter_count(params: object) -> int:
    """Numbers in a parameter tree (arrays or shapes)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def matmul_parameters(config: LlamaConfig) -> int:
    """Parameters that multiply each token: all matrices but the embedding look-up (a tied one counts once, as the output)."""
    M, D = config.hidden_size, config.head_dim
    attention = 2 * M * config.num_heads * D + 2 * M * config.num_kv_heads * D
    return config.num_layers * (attention + 3 * M * config.mlp_size) + M * config.vocab_size


def train_flops_per_token(config: LlamaConfig, length: int, *, causal: bool) -> float:
    """Floating-point operations of one training step for each token: forward and twice that backward; remat not counted.

        6 * (matmul parameters) + 12 * L * H * D * length * (1/2 if causal else 1)

    Two conventions are in use for attention: `causal=False` counts the whole score matrix, `causal=True` only its lower half.
    Hardware use (MFU) is reported in both.

    Source: Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B (full attention).
    """
    attention = 12 * config.num_layers * config.num_heads * config.head_dim * length
    return 6 * matmul_parameters(config) + attention * (0.5 if causal else 1.0)
