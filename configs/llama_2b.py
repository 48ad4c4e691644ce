"""Does the base bound the context of a 2B model pretrained from scratch? The model of "Base of RoPE Bounds Context Length".

Question   Pretrained at 4,096 tokens with base 1e2, 1e4 or 1e6, how far back can the model retrieve, and does its loss tell?
Command    rope-lab prepare REDPAJAMA_FILES --out data/redpajama --tokenizer TOKENIZER.model
           rope-lab train --config=configs/llama_2b.py --workdir=runs/2b_1e2 --config.rotary.base=1e2 --distributed=auto
Cost       1T tokens at 1.4e10 FLOPs a token (full attention): 1.4e22 FLOPs, in the order of a week on 128 accelerators of 459 TFLOP/s
           at 40 % use
Expect     (the paper, Fig. 7) base 1e2: perplexity as low as a larger base gives, but retrieval only from near by; raising
           the base before continued training brings it back. L_theta at head_dim 128 is 58 for base 1e2, 1,706 for 1e4, 27,114 for 1e6.

The shape is Baichuan2-7B's with hidden size 2048. Where the paper disagrees with itself: its Table 5 gives a peak learning rate of 2e-4,
its text 1e-4; the table is followed here.
"""

from ml_collections import ConfigDict

from rope_lab.config import default
from rope_lab.data.pipeline import LLAMA_WEIGHTS


def get_config(arg: str | None = None) -> ConfigDict:
    """32 layers, hidden size 2048, vocabulary 125,696: about 2.13e9 parameters."""
    config = default()

    config.rotary.variant = "rope"
    config.rotary.base = 1e4

    config.model.vocab_size = 125_696  # Baichuan2's tokenizer
    config.model.num_layers = 32
    config.model.hidden_size = 2048
    config.model.num_heads = 16
    config.model.num_kv_heads = 16
    config.model.head_dim = 128
    config.model.mlp_size = 5504
    config.model.residual_init_scale = 0.125  # 1 / sqrt(2 x 32 layers)
    config.model.remat = "full"

    config.data.path = "data/redpajama"  # made by `rope-lab prepare`
    config.data.weights = LLAMA_WEIGHTS
    config.data.retrieval.surface = "text"  # what the retrieval probe asks in; nothing is planted in training rows

    config.train.curriculum = ((4096, 238_419),)  # 1T tokens
    config.train.tokens_per_step = 1024 * 4096
    config.train.microbatches = 4

    config.optimizer.peak_learning_rate = 2e-4
    config.optimizer.warmup_steps = 2000
    config.optimizer.weight_decay = 0.1

    config.mesh.fsdp = 64

    config.checkpoint.every_steps = 1000
    config.checkpoint.keep_every_steps = 10_000
    config.probes.every_steps = 1000

    return config
