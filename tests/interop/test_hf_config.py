"""Published configs give the right frequencies, layer by layer; what is not understood is refused with the block."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rope_lab.interop.hf_config import HFPositions, LayerKind, positions, read_hf_config
from rope_lab.rotary import PI, DynamicNTK, NoPE, Partial, RoPE, Variant, YaRN
from tests.interop.published import LLAMA, MODELS, PHI_3_PAIRS


def ladder(base: float, head_dim: int) -> list[float]:
    return [1 / math.pow(base, 2 * i / head_dim) for i in range(head_dim // 2)]


def llama3(base: float, head_dim: int, factor: float) -> list[float]:
    """Meta's three bands in terms of wavelengths."""
    scaled = []
    for angle in ladder(base, head_dim):
        wavelength = 2 * math.pi / angle
        if wavelength < 8192 / 4:
            scaled.append(angle)
        elif wavelength > 8192:
            scaled.append(angle / factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            scaled.append((1 - smooth) * angle / factor + smooth * angle)
    return scaled


def yarn(base: float, head_dim: int, factor: float, trained: int) -> list[float]:
    """A straight ramp between the pairs that turn 32 times and once in training."""
    low, high = (head_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    low, high = math.floor(low), math.ceil(high)
    kept = [min(max(1 - (i - low) / (high - low), 0.0), 1.0) for i in range(head_dim // 2)]
    return [share * angle + (1 - share) * angle / factor for share, angle in zip(kept, ladder(base, head_dim), strict=True)]


def divided(angles: list[float], divisors: list[float]) -> list[float]:
    return [angle / divisor for angle, divisor in zip(angles, divisors, strict=True)]


LONG = MODELS["phi_3_mini_128k"]["rope_scaling"]["long_factor"]
EVERY = tuple(range(32))

# Model -> trained and claimed tokens; and each kind: name, layers, head_dim, reach and trained reach in tokens, theta, attention factor.
EXPECTED: dict[str, tuple] = {
    "llama_2_7b": (4096, 4096, [("full_attention", EVERY, 128, 4096, 4096, ladder(1e4, 128), 1.0)]),
    "llama_3_8b": (8192, 8192, [("full_attention", EVERY, 128, 8192, 8192, ladder(5e5, 128), 1.0)]),
    "llama_3_1_8b": (8192, 131_072, [("full_attention", EVERY, 128, 131_072, 8192, llama3(5e5, 128, 8), 1.0)]),
    "llama_3_2_1b": (8192, 131_072, [("full_attention", EVERY[:16], 64, 131_072, 8192, llama3(5e5, 64, 32), 1.0)]),
    "mistral_7b_v0_2": (32_768, 32_768, [("full_attention", EVERY, 128, 32_768, 32_768, ladder(1e6, 128), 1.0)]),
    "qwen2_5_7b_yarn": (
        *(32_768, 131_072),
        [("full_attention", EVERY[:28], 128, 131_072, 32_768, yarn(1e6, 128, 4, 32_768), 0.1 * math.log(4) + 1)],
    ),
    "phi_3_mini_128k": (
        *(4096, 131_072),
        [("sliding_attention", EVERY, 96, 131_072, 4096, divided(ladder(1e4, 96), LONG), math.sqrt(1 + math.log(32) / math.log(4096)))],
    ),
    "gemma_3_1b": (
        *(32_768, 32_768),
        [
            ("sliding_attention", tuple(i for i in range(26) if i % 6 != 5), 256, 512, 512, ladder(1e4, 256), 1.0),
            ("full_attention", (5, 11, 17, 23), 256, 32_768, 32_768, ladder(1e6, 256), 1.0),
        ],
    ),
    "gemma_3_4b": (
        *(None, 131_072),
        [
            ("sliding_attention", tuple(i for i in range(34) if i % 6 != 5), 256, 1024, 1024, ladder(1e4, 256), 1.0),
            ("full_attention", (5, 11, 17, 23, 29), 256, 131_072, None, divided(ladder(1e6, 256), [8.0] * 128), 1.0),
        ],
    ),
    "gemma_4": (
        *(131_072, 131_072),
        [
            ("sliding_attention", (0, 1, 2, 3, 4), 256, 512, 512, ladder(1e4, 256), 1.0),
            ("full_attention", (5,), 512, 131_072, 131_072, ladder(1e6, 512)[:64] + [0.0] * 192, 1.0),
        ],
    ),
    "smollm3": (
        *(65_536, 65_536),
        [
            ("full_attention", tuple(i for i in range(36) if i % 4 != 3), 128, 65_536, 65_536, ladder(5e6, 128), 1.0),
            ("no_position", tuple(range(3, 36, 4)), 128, 65_536, 65_536, None, None),
        ],
    ),
}


def summary(kind: LayerKind) -> tuple:
    return kind.name, kind.layers, kind.head_dim, kind.length, kind.trained_length


@pytest.mark.parametrize("name", MODELS)
def test_published_configs(name: str):
    found = positions(MODELS[name])
    trained, claimed, kinds = EXPECTED[name]
    assert (found.trained_length, found.claimed_length) == (trained, claimed)
    assert [summary(kind) for kind in found.kinds] == [tuple(kind[:5]) for kind in kinds]
    for kind, (*_, theta, factor) in zip(found.kinds, kinds, strict=True):
        if theta is None:
            assert kind.encoding == NoPE()
            continue
        assert isinstance(kind.encoding, Variant)
        spectrum = kind.encoding.spectrum(kind.head_dim, kind.length)
        np.testing.assert_allclose(spectrum.theta, theta, rtol=1e-12)
        assert spectrum.attention_factor == pytest.approx(factor, rel=1e-12)


def test_llama_3_2_bands():
    theta = positions(MODELS["llama_3_2_1b"]).kinds[0].encoding.spectrum(64, 131_072).theta  # pyright: ignore[reportAttributeAccessIssue]
    ratio = np.array(ladder(5e5, 64)) / theta
    assert np.flatnonzero(np.isclose(ratio, 1)).tolist() == list(range(15))
    assert np.flatnonzero(np.isclose(ratio, 32)).tolist() == list(range(18, 32))


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if "text_config" not in model])
def test_both_ways_of_writing_a_config_mean_the_same(name: str):
    old = dict(MODELS[name])
    block = {"rope_theta": old.pop("rope_theta", 10_000.0), "rope_type": "default"} | (old.pop("rope_scaling", None) or {})
    if "type" in block:
        block["rope_type"] = block.pop("type")
    if "rope_local_base_freq" in old:
        local = {"rope_type": "default", "rope_theta": old.pop("rope_local_base_freq")}
        block = {"full_attention": block, "sliding_attention": local}
    assert positions(old | {"rope_parameters": block}) == positions(MODELS[name])


SMALL: dict[str, Any] = {**LLAMA, "num_hidden_layers": 4, "max_position_embeddings": 4096}


def one(**fields: Any) -> HFPositions:
    return positions(SMALL | fields)


def test_other_blocks():
    assert one(rope_scaling={"type": "linear", "factor": 4.0}).kinds[0].encoding == PI(factor=4.0)
    dynamic = one(rope_scaling={"type": "dynamic", "factor": 2})
    assert dynamic.kinds[0].encoding == DynamicNTK(factor=2.0, trained_length=4096)
    assert (dynamic.trained_length, dynamic.claimed_length) == (4096, 8192)
    assert one(partial_rotary_factor=0.5).kinds[0].encoding == Partial(fraction=0.5, layout="rotated")
    assert one(partial_rotary_factor=1.0).kinds[0].encoding == RoPE()
    fields = {"beta_fast": 16, "beta_slow": 2, "truncate": False, "mscale": 1.0, "mscale_all_dim": 1.0}
    block = {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 2048, **fields}
    expected = YaRN(factor=16.0, trained_length=2048, beta_fast=16.0, beta_slow=2.0, truncate=False, mscale=1.0, mscale_all_dim=1.0)
    assert one(rope_scaling=block).kinds[0].encoding == expected


def test_layers_without_a_list():
    windows = {"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 3}
    assert [summary(kind)[:2] for kind in one(**windows).kinds] == [("full_attention", (0, 1, 2)), ("sliding_attention", (3,))]
    gemma2 = positions(SMALL | {"model_type": "gemma2", "sliding_window": 1024})
    assert [summary(kind)[:2] for kind in gemma2.kinds] == [("sliding_attention", (0, 2)), ("full_attention", (1, 3))]
    assert [summary(kind)[:2] for kind in one(no_rope_layer_interval=2).kinds] == [("full_attention", (0, 2)), ("no_position", (1, 3))]
    chunked = one(layer_types=["chunked_attention"] * 3 + ["full_attention"], attention_chunk_size=512)
    assert [kind.length for kind in chunked.kinds] == [512, 4096]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
            "rotary scaling of type 'mrope' is not understood: {'rope_theta': 10000.0, 'type': 'mrope', 'mrope_section': [",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
            "rotary scaling 'dynamic' has fields that are not understood, alpha: {'rope_theta': 10000.0, 'type': 'dynamic', 'alpha'",
        ),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "rotary scaling of type "),
        ({"rope_scaling": {"factor": 2.0}}, "rotary scaling 'default' has fields that are not understood, factor: "),
        ({"rope_scaling": "linear"}, "rope_scaling='linear' must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor=None must be a number: {'rope_theta': 10000.0, 'type': 'linear'}"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor='4' must be a number: "),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor=0.5 must be a finite number of at least 1"),
        ({"rope_scaling": {"type": "linear", "factor": math.nan}}, "factor=nan must be a finite number of at least 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate=1 must be true or false"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "partial_rotary_factor": 0.5}, "rotary scaling 'yarn' on part of a head is not"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "original_max_position_embeddings=None must be a whole number",
        ),
        (
            {
                "rope_scaling": {"type": "su", "short_factor": [1.0] * PHI_3_PAIRS, "long_factor": [1.0] * PHI_3_PAIRS},
                "original_max_position_embeddings": 2048,
            },
            "short_factor has 48 entries, but head_dim=128 has 64 pairs",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
            "rope_parameters={'rope_type': 'linear', 'factor': 4.0} and rope_scaling={'type': 'linear', 'factor': 2.0}",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}},
            "rope_parameters={'sliding_attention': {'rope_theta': 10000.0}} must",
        ),
        ({"model_type": "new", "rope_theta": None}, "no rope_theta for full_attention layers in model_type 'new': add it to the file"),
        ({"layer_types": ["full_attention"]}, "layer_types=['full_attention'] must name 4 layers"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types=['linear_attention', 'linear_attention', "),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers=[1, 0] must have 4 entries"),
        ({"hidden_size": 100}, "hidden_size=100 must be a multiple of num_attention_heads=32"),
        ({"max_position_embeddings": 4096.5}, "max_position_embeddings=4096.5 must be a whole number of at least 1"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim=64: latent attention is not supported"),
    ],
)
def test_what_is_not_understood_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        one(**fields)


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[1]", "must hold one JSON object")])
def test_a_file_that_is_no_config(text: str, message: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_hf_config(tmp_path / "config.json")


def test_a_file_is_read_as_it_stands(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(MODELS["gemma_4"]))
    assert read_hf_config(tmp_path / "config.json") == positions(MODELS["gemma_4"])
