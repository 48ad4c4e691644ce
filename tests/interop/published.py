"""The parts of published models' config.json that tell how positions enter, written by hand from what their authors publish."""

from typing import Any

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
LLAMA_3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
PHI_3_PAIRS = 48

MODELS: dict[str, dict[str, Any]] = {
    "llama_2_7b": {**LLAMA, "max_position_embeddings": 4096, "rope_scaling": None},
    "llama_3_8b": {**LLAMA, "max_position_embeddings": 8192, "rope_theta": 500_000.0, "rope_scaling": None},
    "llama_3_1_8b": {
        **LLAMA,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": {"factor": 8.0, **LLAMA_3_SCALING},
    },
    "llama_3_2_1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "head_dim": 64,
        "num_hidden_layers": 16,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": {"factor": 32.0, **LLAMA_3_SCALING},
    },
    "mistral_7b_v0_2": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "sliding_window": None,
    },
    "qwen2_5_7b_yarn": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "max_position_embeddings": 32_768,
        "max_window_layers": 28,
        "rope_theta": 1_000_000.0,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32_768, "type": "yarn"},
        "sliding_window": 131_072,
        "use_sliding_window": False,
    },
    "phi_3_mini_128k": {
        "model_type": "phi3",
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "max_position_embeddings": 131_072,
        "original_max_position_embeddings": 4096,
        "rope_theta": 10_000.0,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0 + 0.02 * i for i in range(PHI_3_PAIRS)],
            "long_factor": [1.0 + 1.3 * i for i in range(PHI_3_PAIRS)],
        },
        "sliding_window": 262_144,
    },
    "gemma_3_1b": {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "hidden_size": 1152,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "max_position_embeddings": 32_768,
        "rope_local_base_freq": 10_000,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "gemma_3_4b": {
        "model_type": "gemma3",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    },
    "gemma_4": {
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text",
            "head_dim": 256,
            "global_head_dim": 512,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "max_position_embeddings": 131_072,
            "sliding_window": 512,
            "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"},
                "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
            },
        },
    },
    "smollm3": {
        "model_type": "smollm3",
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "layer_types": ["full_attention"] * 36,
        "max_position_embeddings": 65_536,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0] * 9,
        "rope_scaling": None,
        "rope_theta": 5_000_000.0,
        "sliding_window": None,
        "use_sliding_window": False,
    },
}
