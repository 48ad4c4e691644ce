"""Which base lets a tiny model retrieve across its whole context, on a laptop?

Question   Two runs that differ in `rotary.base` alone: does the one with the lower loss also look further back?
Command    rope-lab train --config=configs/tiny.py --workdir=runs/base_1e2 --config.rotary.base=1e2
           rope-lab train --config=configs/tiny.py --workdir=runs/base_1e6 --config.rotary.base=1e6
Cost       about two minutes a run on two CPU cores
Expect     base 1e6: accuracy above .85 at every distance, effective length 256. Base 1e2: the same loss on text within 0.05 nats, and
           near chance (.06) beyond distance 192. L_theta is 27 for base 1e2 and 3477 for 1e6 (head_dim 32).
"""

from ml_collections import ConfigDict

from rope_lab.config import default


def get_config(arg: str | None = None) -> ConfigDict:
    """Two layers, byte tokens, the shipped sample, and retrieval records in 85 % of the rows."""
    config = default()

    config.rotary.variant = "rope"
    config.rotary.base = 1e4

    config.model.vocab_size = 832  # 257 byte ids, 560 of the retrieval surface, rounded up to a multiple of 64
    config.model.num_layers = 2
    config.model.hidden_size = 64
    config.model.num_heads = 2
    config.model.num_kv_heads = 2
    config.model.head_dim = 32
    config.model.mlp_size = 128
    config.model.embedding_init_std = 0.1
    config.model.residual_init_scale = 0.1
    config.model.query_key_norm = True
    config.model.compute_dtype = "float32"
    config.model.scan_unroll = 2

    config.data.retrieval.weight = 0.85

    # The very short first stage is what makes retrieval appear at all; starting at 256 fails.
    config.train.curriculum = ((32, 300), (64, 300), (256, 400))
    config.train.tokens_per_step = 4096

    config.optimizer.peak_learning_rate = 3e-3
    config.optimizer.warmup_steps = 40
    config.optimizer.b2 = 0.98

    config.checkpoint.every_steps = 200
    config.probes.every_steps = 250

    return config
