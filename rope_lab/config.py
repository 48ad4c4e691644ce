"""The only wall: an `ml_collections.ConfigDict` comes in, frozen dataclasses go out, and nobody past here sees a ConfigDict.

The dataclasses are the schema. `default()` writes them out as a ConfigDict, a config file sets fields, the command line overrides
them, and `resolve()` builds the dataclasses back, checking every name, type and combination once.
"""

import ast
import dataclasses
import difflib
import importlib.util
import re
import traceback
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from ml_collections import ConfigDict, config_dict

import rope_lab
from rope_lab.data.pipeline import DataConfig, stages
from rope_lab.model.llama import LlamaConfig
from rope_lab.probes.effective_length import length_scalars
from rope_lab.probes.suite import RETRIEVAL, ProbeConfig
from rope_lab.rotary import VARIANTS, AbstractPositionEncoding, Scaled
from rope_lab.train.checkpoint import CheckpointConfig
from rope_lab.train.loop import TrainConfig
from rope_lab.train.optimizer import OptimizerConfig
from rope_lab.train.sharding import MeshConfig


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """Where parameters come from; optimizer, schedule and data start anew.

    Attributes:
      from_: run folder to take them from (`init.from`); None: fresh ones.
      step: which of its checkpoints; None: the newest.
    """

    from_: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class TheoryConfig:
    """What the frequencies alone must promise before a run starts.

    Attributes:
      require_bound: refuse to train where B_m turns negative within the longest context of the curriculum.
    """

    require_bound: bool = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run, checked."""

    rotary: AbstractPositionEncoding
    model: LlamaConfig
    data: DataConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig
    checkpoint: CheckpointConfig
    probes: ProbeConfig
    init: InitConfig
    theory: TheoryConfig


def default() -> ConfigDict:
    """Every field with its default, or a typed placeholder where a config must choose; locked, so a misspelt name is an error."""
    config = ConfigDict({"rotary": _rotary_fields()} | {name: _fields(kind) for name, kind in _sections().items()})
    config.lock()
    return config


def load(path: str, overrides: list[str]) -> ConfigDict:
    """Runs `get_config()` of a config file, `PATH` or `PATH:ARGUMENT`, and applies `--config.section.field=value` overrides in order.

    `configs/NAME.py` or `NAME.py` that does not exist from here is looked up among the configs that come with rope_lab. The value
    None unsets a field.

    Raises:
      ValueError: naming the file and the line in it, or the override and what it should have been.
    """
    file, *argument = path.split(":", 1)
    config = _run_config_file(_find(file), argument)
    apply_overrides(config, overrides)
    return config


def apply_overrides(config: ConfigDict, overrides: Iterable[str], section: str | None = None) -> None:
    """Sets fields of `config` as `--config.section.field=value` texts say, in order; with `section`, fields of no other.

    Raises:
      ValueError: naming the override, and what it should have been.
    """
    types = _leaf_types(config)
    example = f"--config.{section}.FIELD=VALUE" if section else "--config.rotary.base=1e6"
    for override in overrides:
        flag, equals, text = override.partition("=")
        key = flag.removeprefix("--config.")
        if key == flag or not equals:
            raise ValueError(f"{override!r} is not understood; overrides look like {example}")
        if key not in types:
            raise ValueError(f"unknown config key {key}; {_nearest(key, types)}")
        if section is not None and not key.startswith(f"{section}."):
            raise ValueError(f"{override!r} is not for here: of a finished run only --config.{section}.* may be set, the rest is as it was")
        config.update_from_flattened_dict({key: None if text == "None" else _parsed(text, types[key], key)})


def _leaf_types(config: ConfigDict, prefix: str = "") -> dict[str, type]:
    """Type of each field by its dotted name."""
    result = {}
    for key, value in config.items():
        result |= _leaf_types(value, f"{prefix}{key}.") if isinstance(value, ConfigDict) else {prefix + key: config.get_type(key)}
    return result


def _nearest(key: str, known: Iterable[str]) -> str:
    """What may have been meant: a name like it, else what its group holds, else the groups."""
    if near := difflib.get_close_matches(key, known, 1):
        return f"did you mean {near[0]!r}?"
    inside = [name for name in known if name.startswith(f"{key.partition('.')[0]}.")]
    return f"one of {', '.join(inside or sorted({name.partition('.')[0] for name in known}))}"


def _parsed(text: str, kind: type, path: str) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f"{path}={text} must be true or false")
    try:
        value = ast.literal_eval(text) if kind is tuple else kind(text)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{path}={text} must be of type {_type_name(kind)}") from error
    if not isinstance(value, kind):
        raise ValueError(f"{path}={text} must be a tuple, such as '(1, 2)', and '(1,)' where it has one entry")
    return value


def _run_config_file(file: Path, arguments: list[str]) -> ConfigDict:
    """What the file's `get_config` returns. The file is the user's own code: whatever it raises is bad input, told with its place."""
    spec = importlib.util.spec_from_file_location("config_file", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"config file {str(file)!r} must be a Python file, NAME.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*arguments)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"config file {str(file)!r}{f', line {line}' if line else ''}"
        raise ValueError(f"{where}: {type(error).__name__}: {_one_line(error)}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"config file {str(file)!r}: get_config() must return a ConfigDict, not {config!r}; is its last line a return?")
    config.lock()
    return config


def resolve(config: ConfigDict) -> Config:
    """Checks a ConfigDict and turns it into frozen dataclasses.

    Raises:
      ValueError: naming the key, its value and the remedy: unknown or missing keys, wrong types, impossible combinations.
    """
    known = {"rotary": None, **_sections()}
    _reject_unknown(config, known, "config")
    for name in known:
        if name not in config:
            raise ValueError(f"config key {name} is missing; start from rope_lab.config.default()")
    parts = {name: _build(kind, config[name], name) for name, kind in _sections().items()}
    result = Config(rotary=_build_rotary(config.rotary), **parts)
    _check_together(result)
    return result


def parse_variant(name: str, settings: Iterable[str] = ()) -> AbstractPositionEncoding:
    """A position encoding from its name in `VARIANTS` and `field=value` texts, typed and checked as `--config.rotary.field=value` is.

    Raises:
      ValueError: naming the field, its value and the remedy.
    """
    config = ConfigDict({**_rotary_fields(), "variant": name})
    known = _leaf_types(config)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r} is not understood; settings of a variant look like base=1e6")
        if key == "variant" or key not in known:
            raise ValueError(f"{key!r} is no field of a variant; {_nearest(key, [field for field in known if field != 'variant'])}")
        config[key] = None if text == "None" else _parsed(text, known[key], key)
    return _build_rotary(config, flag="")


def to_dict(config: ConfigDict) -> dict:
    """The plain, JSON-ready form that a run folder keeps."""
    return _plain(config.to_dict())


def _sections() -> dict[str, type]:
    hints = typing.get_type_hints(Config)
    return {field.name: hints[field.name] for field in dataclasses.fields(Config) if field.name != "rotary"}


def _key(name: str) -> str:
    return name.rstrip("_")  # `from` is a Python keyword


def _strip_none(kind: Any) -> tuple[Any, bool]:
    """(the type, whether None is allowed) of `X` or `X | None`."""
    if isinstance(kind, types.UnionType):
        inner = [part for part in kind.__args__ if part is not type(None)]
        assert len(inner) == 1, f"config fields are one type, or it and None: {kind}"
        return inner[0], True
    return kind, False


def _is_section(kind: Any) -> TypeGuard[type]:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _fields(kind: type) -> dict:
    hints, fields = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        inner, _ = _strip_none(hints[field.name])
        if _is_section(inner):
            fields[_key(field.name)] = _fields(inner)
        elif field.default is None or field.default is dataclasses.MISSING:
            fields[_key(field.name)] = config_dict.placeholder(typing.get_origin(inner) or inner)
        else:
            fields[_key(field.name)] = field.default
    return fields


def _rotary_fields() -> dict:
    """`variant`, the fields of all variants and of what scales any of them, each unset: a variant's own default holds until then."""
    fields: dict[str, Any] = {"variant": "rope"}
    for hints in (*map(typing.get_type_hints, VARIANTS.values()), _scaling_hints()):
        for name, kind in hints.items():
            inner, _ = _strip_none(kind)
            fields[name] = config_dict.placeholder(typing.get_origin(inner) or inner)
    return fields


def _scaling_hints() -> dict[str, Any]:
    return {name: kind for name, kind in typing.get_type_hints(Scaled).items() if name != "encoding"}


def _build(kind: type, config: Any, path: str) -> Any:
    hints, values = typing.get_type_hints(kind), {}
    _reject_unknown(config, {_key(field.name) for field in dataclasses.fields(kind)}, path)
    for field in dataclasses.fields(kind):
        key = _key(field.name)
        inner, optional = _strip_none(hints[field.name])
        if key not in config:
            raise ValueError(f"config key {path}.{key} is missing; start from rope_lab.config.default()")
        value = config[key]
        if _is_section(inner):
            values[field.name] = _build(inner, value, f"{path}.{key}")
        elif value is None and not optional:
            raise ValueError(f"{path}.{key} is not set; it needs a value of type {_type_name(inner)}, e.g. --config.{path}.{key}=...")
        else:
            values[field.name] = None if value is None else _checked(value, inner, f"{path}.{key}")
    return kind(**values)


def _build_rotary(config: Any, flag: str = "--config.rotary.") -> AbstractPositionEncoding:
    """`flag`: what stands before `field=value` where the user sets it."""
    _reject_unknown(config, _rotary_fields(), "rotary")
    if "variant" not in config:
        raise ValueError("config key rotary.variant is missing; start from rope_lab.config.default()")
    if config.variant not in VARIANTS:
        near = difflib.get_close_matches(str(config.variant), VARIANTS, 1)
        raise ValueError(
            f"rotary.variant={config.variant!r} is unknown{f' (did you mean {near[0]!r}?)' if near else ''}; one of {', '.join(VARIANTS)}"
        )
    variant = VARIANTS[config.variant]
    hints = typing.get_type_hints(variant)
    given = {name: value for name, value in config.items() if name != "variant" and value is not None}
    scaling = {
        name: _checked(given.pop(name), _strip_none(kind)[0], f"rotary.{name}") for name, kind in _scaling_hints().items() if name in given
    }
    for name, value in given.items():
        if name not in hints:
            users = [other for other, kind in VARIANTS.items() if name in typing.get_type_hints(kind)]
            raise ValueError(
                f"rotary.{name}={value} means nothing to variant {config.variant!r}; "
                f"unset it ({flag}{name}=None), or choose variant {' or '.join(users)}"
            )
    for field in dataclasses.fields(typing.cast(Any, variant)):
        if field.default is dataclasses.MISSING and field.name not in given:
            raise ValueError(f"rotary.{field.name} is not set; variant {config.variant!r} needs it: {flag}{field.name}=...")
    encoding = variant(**{name: _checked(value, _strip_none(hints[name])[0], f"rotary.{name}") for name, value in given.items()})
    return Scaled(encoding=encoding, **scaling) if scaling else encoding


def _checked(value: Any, kind: Any, path: str) -> Any:
    """`value` as `kind`: an int may stand for a float, a list for a tuple; anything else is an error."""
    plain = typing.get_origin(kind) or kind
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if plain is tuple and isinstance(value, list | tuple):
        return _checked_tuple(value, typing.get_args(kind), path)
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        raise ValueError(f"{path}={value!r} must be of type {_type_name(kind)}")
    return value


def _checked_tuple(value: Any, parts: tuple, path: str) -> tuple:
    if len(parts) == 2 and parts[1] is Ellipsis:
        return tuple(_checked(item, parts[0], f"{path}[{index}]") for index, item in enumerate(value))
    if len(value) != len(parts):
        raise ValueError(f"{path}={value!r} must have {len(parts)} entries: {', '.join(map(_type_name, parts))}")
    return tuple(_checked(item, part, f"{path}[{index}]") for index, (item, part) in enumerate(zip(value, parts, strict=True)))


def _reject_unknown(config: Any, known: Iterable[str], path: str) -> None:
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{path}={config!r} must be a group of fields: {', '.join(sorted(known))}")
    for key in config:
        if key not in known:
            raise ValueError(f"unknown config key {path}.{key}; {_nearest(key, known)}")


def _check_together(config: Config) -> None:
    for name in ("tokens_per_step", "microbatches", "loss_chunk_tokens"):
        value = getattr(config.train, name)
        if value is not None and value < 1:
            raise ValueError(f"train.{name}={value} must be at least 1")
    for name, seed in (
        ("train", config.train.seed),
        ("data", config.data.seed),
        ("probes.kv_by_distance", config.probes.kv_by_distance.seed),
    ):
        if not 0 <= seed < 2**32:
            raise ValueError(f"{name}.seed={seed} must lie in 0 .. 2**32 - 1")
    plan = stages(config.train.curriculum, config.train.tokens_per_step)
    for stage in plan:
        if stage.rows % config.train.microbatches:
            raise ValueError(
                f"train.microbatches={config.train.microbatches} must divide the {stage.rows} rows of a step "
                f"at context length {stage.length}"
            )
    if config.probes.every_tokens is not None and config.probes.every_tokens < config.train.tokens_per_step:
        raise ValueError(
            f"probes.every_tokens={config.probes.every_tokens} must be at least train.tokens_per_step={config.train.tokens_per_step}: "
            "probes run between steps"
        )
    if config.checkpoint.keep_best:
        _check_best(config)
    if config.init.step is not None and config.init.from_ is None:
        raise ValueError(f"init.step={config.init.step} needs init.from, the run folder it is a step of")
    # The variant's own checks against head_dim and the longest context.
    config.rotary.table(config.model.head_dim, plan[-1].length, plan[-1].length)


def _check_best(config: Config) -> None:
    """`checkpoint.best_metric` is one that a probe of this run measures, larger is better, at steps that are saved."""
    metrics = length_scalars(np.array([1]), [np.array([True])], 1.0)
    wanted, measuring = config.checkpoint.best_metric, [name for name in config.probes.names if name in RETRIEVAL]
    known = [f"probe/{name}/{metric}" for name in measuring for metric in metrics]
    if wanted not in known:
        remedy = f"{_nearest(wanted, known)}" if known else f"probes.names must have one of {', '.join(RETRIEVAL)}"
        raise ValueError(f"checkpoint.best_metric={wanted!r} with checkpoint.keep_best is measured by no probe of this run; {remedy}")
    saved = config.checkpoint.every_steps * config.train.tokens_per_step
    probed = config.probes.every_tokens or config.probes.every_steps * config.train.tokens_per_step
    if saved % probed and probed % saved:
        name = "probes.every_tokens" if config.probes.every_tokens else "probes.every_steps"
        raise ValueError(
            f"checkpoint.keep_best={config.checkpoint.keep_best} needs checkpoints at steps that are probed: checkpoint.every_steps="
            f"{config.checkpoint.every_steps} ({saved:,} tokens) and {name}={getattr(config.probes, name.partition('.')[2])} "
            f"({probed:,} tokens) must be multiples, one of the other"
        )


def _find(file: str) -> Path:
    package = Path(rope_lab.__file__).parent
    shipped = next(folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir())
    if Path(file).is_file():
        return Path(file).absolute()
    if Path(file).parent in (Path("configs"), Path()) and (shipped / Path(file).name).is_file():
        return shipped / Path(file).name
    names = ", ".join(f"configs/{path.name}" for path in sorted(shipped.glob("*.py")))
    raise ValueError(f"config file {file!r} does not exist; rope_lab comes with {names}")


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _one_line(error: BaseException) -> str:
    text = str(error.args[0] if error.args else error)  # a KeyError's str() is a quoted repr
    text = re.sub(r'Other fields present: .*}"(\\n)?', "", text, flags=re.DOTALL)  # ConfigDict prints itself whole
    return " ".join(text.split())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
