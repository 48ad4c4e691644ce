"""Position encodings of a Hugging Face `config.json`, layer by layer.

Reads both forms in use: `rope_theta` beside `rope_scaling`, and `rope_parameters`, flat or one block for each layer type. What is not
understood is an error that shows the block: a scaling that is silently dropped gives a model that is fluent and wrong.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_lab.rotary import PI, AbstractPositionEncoding, DynamicNTK, Llama3, LongRoPE, NoPE, Partial, RoPE, YaRN

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
NO_POSITION = "no_position"

_BASE_10_000 = ("llama", "mistral", "mixtral", "qwen2", "phi3", "gemma", "gemma2")
_DEFAULTS: dict[str, dict[str, Any]] = {name: {"rope_theta": 10_000.0} for name in _BASE_10_000} | {
    "gemma3_text": {
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": 6,
    },
}
"""What a model type takes where its file is silent, as in transformers. Other types must say."""

_ORIGINAL = "original_max_position_embeddings"
_COMMON = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}
_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor", _ORIGINAL},
    "dynamic": {"factor", _ORIGINAL},
    "yarn": {"factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim"},
    "llama3": {"factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"},
    "longrope": {"factor", _ORIGINAL, "short_factor", "long_factor", "attention_factor"},
    "proportional": set(),
}
_ALIASES = {"su": "longrope"}


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Layers that share an encoding and a reach.

    Attributes:
      name: the layer type, as the file or transformers calls it; layers without positions are "no_position".
      layers: their indices, rising.
      encoding: how positions enter them.
      head_dim: dimensions of one head.
      length: tokens they are claimed to reach: the context, or the window where that is shorter.
      trained_length: tokens they were pretrained to reach; None where the file does not tell.
    """

    name: str
    layers: tuple[int, ...]
    encoding: AbstractPositionEncoding
    head_dim: int
    length: int
    trained_length: int | None


@dataclass(frozen=True, kw_only=True)
class HFPositions:
    """How positions enter a published model.

    Attributes:
      model_type: as the file says.
      claimed_length: tokens the file promises.
      trained_length: tokens of pretraining before any extension; None where the file does not tell.
      kinds: every layer is in exactly one.
    """

    model_type: str
    claimed_length: int
    trained_length: int | None
    kinds: tuple[LayerKind, ...]


@dataclass(frozen=True)
class _Scaled:
    encoding: AbstractPositionEncoding
    trained: int | None
    claimed: int


def read_hf_config(path: Path) -> HFPositions:
    """Reads `config.json`.

    Raises:
      ValueError: if the file is not one, or holds what is not understood; the block is shown.
    """
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{str(path)!r} must hold one JSON object, a model's config")
    return positions(config)


def positions(config: dict[str, Any]) -> HFPositions:
    """The same from the parsed file; a multimodal model's `text_config` is what counts.

    Raises:
      ValueError: if something is missing or not understood.
    """
    config = config.get("text_config") or config
    model_type = str(config.get("model_type", "unknown"))
    config = _DEFAULTS.get(model_type, {}) | {key: value for key, value in config.items() if value is not None}
    if "qk_rope_head_dim" in config:
        raise ValueError(f"qk_rope_head_dim={config['qk_rope_head_dim']}: latent attention is not supported")
    types = _layer_types(config)
    scaled = {name: _scaled(_block(config, name), config, _head_dim(config, name)) for name in dict.fromkeys(types)}
    main = scaled.get(FULL) or next(iter(scaled.values()))
    kinds = []
    without = _layers_without_positions(config, len(types))
    for name, each in scaled.items():
        window = _window(config, name)
        for nope in (False, True):
            layers = tuple(i for i, kind in enumerate(types) if kind == name and (i in without) == nope)
            if layers:
                kinds.append(
                    LayerKind(
                        name=NO_POSITION if nope else name,
                        layers=layers,
                        encoding=NoPE() if nope else each.encoding,
                        head_dim=_head_dim(config, name),
                        length=_least(main.claimed, window),
                        trained_length=each.trained if window is None else _least(window, each.trained),
                    )
                )
    return HFPositions(model_type=model_type, claimed_length=main.claimed, trained_length=main.trained, kinds=tuple(kinds))


def _block(config: dict[str, Any], layer_type: str) -> dict[str, Any]:
    """The rotary block of a layer type, with its base in it."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{name}={value!r} must be an object")
    if new and old and new != old:
        raise ValueError(f"rope_parameters={new} and rope_scaling={old} are both set and differ; keep one")
    block = new or old or {}
    if any(isinstance(value, dict) for value in block.values()):
        if layer_type not in block or not all(isinstance(value, dict) for value in block.values()):
            raise ValueError(f"rope_parameters={block} must have one block for each layer type; {layer_type!r} has none")
        block = block[layer_type]
    elif layer_type == SLIDING and "rope_local_base_freq" in config:
        block = {"rope_type": "default", "rope_theta": config["rope_local_base_freq"]}
    outside = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    if "rope_theta" not in outside | block:
        raise ValueError(f"no rope_theta for {layer_type} layers in model_type {config.get('model_type')!r}: add it to the file")
    return outside | block


def _scaled(block: dict[str, Any], config: dict[str, Any], head_dim: int) -> _Scaled:
    """The variant a block means, and the lengths that follow from it."""
    kinds = {_ALIASES.get(block[key], block[key]) for key in ("rope_type", "type") if block.get(key) is not None} or {"default"}
    kind = kinds.pop()
    if kinds or kind not in _KEYS:
        raise ValueError(f"rotary scaling of type {kind!r} is not understood: {block}; known are {', '.join(_KEYS)}")
    if unknown := sorted(set(block) - _COMMON - _KEYS[kind]):
        raise ValueError(f"rotary scaling {kind!r} has fields that are not understood, {', '.join(unknown)}: {block}")
    fraction = _optional(_number, block, "partial_rotary_factor")
    if kind not in ("default", "proportional") and fraction not in (None, 1.0):
        raise ValueError(f"rotary scaling {kind!r} on part of a head is not supported: {block}")
    base = _number(block, "rope_theta")
    longest = _whole(config, "max_position_embeddings")
    stated = _whole(block, _ORIGINAL) if block.get(_ORIGINAL) is not None else _optional(_whole, config, _ORIGINAL)
    if kind in ("default", "proportional"):
        encoding: AbstractPositionEncoding = RoPE(base=base)
        if kind == "proportional" or fraction not in (None, 1.0):
            layout = "proportional" if kind == "proportional" else "rotated"
            encoding = Partial(fraction=1.0 if fraction is None else fraction, layout=layout, base=base)
        return _Scaled(encoding, longest, longest)
    if kind == "longrope":
        trained = _whole({_ORIGINAL: stated}, _ORIGINAL)
        encoding = LongRoPE(
            short_factor=_numbers(block, "short_factor"),
            long_factor=_numbers(block, "long_factor"),
            factor=longest / trained if block.get("factor") is None else _number(block, "factor"),
            trained_length=trained,
            attention_factor=_optional(_number, block, "attention_factor"),
            base=base,
        )
        encoding.spectrum(head_dim, longest)  # the lists' lengths
        return _Scaled(encoding, trained, longest)
    factor, trained = _number(block, "factor"), longest if stated is None else stated
    if kind == "linear":
        return _Scaled(PI(factor=factor, base=base), stated, longest)
    if kind == "dynamic":
        return _Scaled(DynamicNTK(factor=factor, trained_length=trained, base=base), trained, max(longest, round(factor * trained)))
    if kind == "llama3":
        bands = {key: _number(block, key) for key in ("low_freq_factor", "high_freq_factor")}
        trained = _whole({_ORIGINAL: stated}, _ORIGINAL)
        return _Scaled(Llama3(factor=factor, trained_length=trained, base=base, **bands), trained, longest)
    assert kind == "yarn"
    optional = {
        key: _number(block, key)
        for key in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
        if block.get(key) is not None
    }
    if not isinstance(block.get("truncate", True), bool):
        raise ValueError(f"truncate={block['truncate']!r} must be true or false")
    yarn = YaRN(factor=factor, trained_length=trained, truncate=block.get("truncate", True), base=base, **optional)
    return _Scaled(yarn, trained, max(longest, round(factor * trained)))


def _layer_types(config: dict[str, Any]) -> list[str]:
    """The type of each layer; where the file has no list, as transformers makes it."""
    count = _whole(config, "num_hidden_layers")
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != count or not set(types) <= {FULL, SLIDING, CHUNKED}:
            raise ValueError(f"layer_types={types!r} must name {count} layers, each {FULL}, {SLIDING} or {CHUNKED}")
        return types
    if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        return [FULL] * count
    if config.get("model_type") == "gemma2":
        config = config | {"sliding_window_pattern": 2}
    if "sliding_window_pattern" in config:
        pattern = _whole(config, "sliding_window_pattern")
        return [FULL if (i + 1) % pattern == 0 else SLIDING for i in range(count)]
    first = _whole(config, "max_window_layers") if config.get("use_sliding_window") else 0
    return [SLIDING if i >= first else FULL for i in range(count)]


def _layers_without_positions(config: dict[str, Any], count: int) -> set[int]:
    """Indices of NoPE layers: `no_rope_layers` has 0 for them, and without it every interval's last layer is one."""
    marks = config.get("no_rope_layers")
    if marks:
        if not isinstance(marks, list) or len(marks) != count or not set(marks) <= {0, 1}:
            raise ValueError(f"no_rope_layers={marks!r} must have {count} entries, 0 for a layer without positions and 1 for others")
        return {i for i, turned in enumerate(marks) if not turned}
    if "no_rope_layer_interval" in config:
        interval = _whole(config, "no_rope_layer_interval")
        return {i for i in range(count) if (i + 1) % interval == 0}
    return set()


def _window(config: dict[str, Any], layer_type: str) -> int | None:
    key = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}.get(layer_type)
    return None if key is None else _whole(config, key)


def _head_dim(config: dict[str, Any], layer_type: str) -> int:
    if layer_type == FULL and "global_head_dim" in config:
        return _whole(config, "global_head_dim")
    if "head_dim" in config:
        return _whole(config, "head_dim")
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    if hidden % heads:
        raise ValueError(f"hidden_size={hidden} must be a multiple of num_attention_heads={heads} where head_dim is not given")
    return hidden // heads


def _number(block: dict[str, Any], key: str) -> float:
    value = block.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}={value!r} must be a number: {_shown(block)}")
    return float(value)


def _whole(block: dict[str, Any], key: str) -> int:
    value = block.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}={value!r} must be a whole number of at least 1: {_shown(block)}")
    return value


def _numbers(block: dict[str, Any], key: str) -> tuple[float, ...]:
    values = block.get(key)
    if not isinstance(values, list):
        raise ValueError(f"{key}={values!r} must be a list of numbers: {_shown(block)}")
    return tuple(_number({f"{key}[{i}]": value}, f"{key}[{i}]") for i, value in enumerate(values))


def _optional(read: Callable[[dict[str, Any], str], Any], block: dict[str, Any], key: str) -> Any:
    return None if block.get(key) is None else read(block, key)


def _shown(block: dict[str, Any]) -> str:
    text = str(block)
    return text if len(text) < 400 else f"{text[:400]} ..."


def _least(first: int, second: int | None) -> int:
    return first if second is None else min(first, second)
