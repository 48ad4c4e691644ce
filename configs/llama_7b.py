"""What does a 7B model gain from a larger base at the same context? The shape of Llama 2 7B.

Question   At the size most released models have: does the effective length follow the base as it does at 2B?
Command    rope-lab prepare REDPAJAMA_FILES --out data/redpajama --tokenizer TOKENIZER.model
           rope-lab train --config=configs/llama_7b.py --workdir=runs/7b_1e4 --config.rotary.base=1e4 --distributed=auto
Cost       1T tokens at 4.6e10 FLOPs a token: 4.6e22 FLOPs, about three and a half weeks on 128 accelerators of 459 TFLOP/s at 40 % use
Expect     not measured by us; L_theta at head_dim 128 is 1,706 for base 1e4 and 18,437 for 5e5
"""

from ml_collections import ConfigDict

from rope_lab.config import default
from rope_lab.data.pipeline import LLAMA_WEIGHTS


def get_config(arg: str | None = None) -> ConfigDict:
    """32 layers, hidden size 4096, vocabulary 32,000: about 6.7e9 parameters."""
    config = default()

    config.rotary.variant = "rope"
    config.rotary.base = 1e4

    config.model.vocab_size = 32_000  # Llama 2's tokenizer
    config.model.num_layers = 32
    config.model.hidden_size = 4096
    config.model.num_heads = 32
    config.model.num_kv_heads = 32
    config.model.head_dim = 128
    config.model.mlp_size = 11008
    config.model.residual_init_scale = 0.125  # 1 / sqrt(2 x 32 layers)
    config.model.remat = "full"

    config.data.path = "data/redpajama"  # made by `rope-lab prepare`
    config.data.weights = LLAMA_WEIGHTS
    config.data.retrieval.surface = "text"  # what the retrieval probe asks in; nothing is planted in training rows

    config.train.curriculum = ((4096, 238_419),)  # 1T tokens
    config.train.tokens_per_step = 1024 * 4096
    config.train.microbatches = 4

    config.optimizer.peak_learning_rate = 3e-4
    config.optimizer.warmup_steps = 2000
    config.optimizer.weight_decay = 0.1

    config.mesh.fsdp = 64

    config.checkpoint.every_steps = 1000
    config.checkpoint.keep_every_steps = 10_000
    config.probes.every_steps = 1000

    return config
