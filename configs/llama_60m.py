"""Which base, at the smallest size that learns to retrieve from ordinary text?

Question   The base ablation of `llama_2b.py` in an hour on one accelerator.
Command    rope-lab prepare REDPAJAMA_FILES --out data/redpajama --tokenizer TOKENIZER.model
           rope-lab train --config=configs/llama_60m.py --workdir=runs/60m_1e2 --config.rotary.base=1e2
Cost       1.2e9 tokens (20 a parameter) at 3.5e8 FLOPs a token (context 2048): 4.2e17 FLOPs, about an hour on
           one accelerator of 459 TFLOP/s at 30 % use
Expect     not measured by us; L_theta at head_dim 64 is 45 for base 1e2, 724 for 1e4, 9,936 for 5e5 and only 6,234 for 1e6
"""

from ml_collections import ConfigDict

from rope_lab.config import default
from rope_lab.data.pipeline import LLAMA_WEIGHTS


def get_config(arg: str | None = None) -> ConfigDict:
    """8 layers, hidden size 512, vocabulary 32,000: about 5.8e7 parameters."""
    config = default()

    config.rotary.variant = "rope"
    config.rotary.base = 1e4

    config.model.vocab_size = 32_000
    config.model.num_layers = 8
    config.model.hidden_size = 512
    config.model.num_heads = 8
    config.model.num_kv_heads = 8
    config.model.head_dim = 64
    config.model.mlp_size = 1376
    config.model.residual_init_scale = 0.250  # 1 / sqrt(2 x 8 layers)
    config.model.remat = "none"

    config.data.path = "data/redpajama"  # made by `rope-lab prepare`
    config.data.weights = LLAMA_WEIGHTS
    config.data.retrieval.surface = "text"  # what the retrieval probe asks in; nothing is planted in training rows

    config.train.curriculum = ((2048, 4_600),)
    config.train.tokens_per_step = 128 * 2048
    config.train.microbatches = 4

    config.optimizer.peak_learning_rate = 1e-3
    config.optimizer.warmup_steps = 300

    config.checkpoint.every_steps = 500
    config.probes.every_steps = 250

    return config
