"""Which base, at a size that one machine pretrains in a day?

Question   The base ablation of `llama_2b.py` at a sixth of its size.
Command    rope-lab prepare REDPAJAMA_FILES --out data/redpajama --tokenizer TOKENIZER.model
           rope-lab train --config=configs/llama_350m.py --workdir=runs/350m_1e2 --config.rotary.base=1e2
Cost       7.3e9 tokens (20 a parameter) at 3.2e9 FLOPs a token: 2.4e19 FLOPs, two and a half hours
           on eight accelerators of 989 TFLOP/s at 35 % use
Expect     not measured by us; L_theta at head_dim 64 is 45 for base 1e2, 724 for 1e4, 9,936 for 5e5 and only 6,234 for 1e6
"""

from ml_collections import ConfigDict

from rope_lab.config import default
from rope_lab.data.pipeline import LLAMA_WEIGHTS


def get_config(arg: str | None = None) -> ConfigDict:
    """24 layers, hidden size 1024, vocabulary 32,000: about 3.7e8 parameters."""
    config = default()

    config.rotary.variant = "rope"
    config.rotary.base = 1e4

    config.model.vocab_size = 32_000
    config.model.num_layers = 24
    config.model.hidden_size = 1024
    config.model.num_heads = 16
    config.model.num_kv_heads = 16
    config.model.head_dim = 64
    config.model.mlp_size = 2736
    config.model.residual_init_scale = 0.144  # 1 / sqrt(2 x 24 layers)
    config.model.remat = "dots"

    config.data.path = "data/redpajama"  # made by `rope-lab prepare`
    config.data.weights = LLAMA_WEIGHTS
    config.data.retrieval.surface = "text"  # what the retrieval probe asks in; nothing is planted in training rows

    config.train.curriculum = ((4096, 14_000),)
    config.train.tokens_per_step = 128 * 4096
    config.train.microbatches = 2

    config.optimizer.peak_learning_rate = 6e-4
    config.optimizer.warmup_steps = 500

    config.mesh.fsdp = 8

    config.checkpoint.every_steps = 1000
    config.probes.every_steps = 500

    return config
