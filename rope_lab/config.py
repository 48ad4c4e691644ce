"""The only wall: an `ml_collections.ConfigDict` comes in, frozen dataclasses go out, and nobody past here sees a ConfigDict.

The dataclasses are the schema. `default()` writes them out as a ConfigDict, a config file sets fields, the command line overrides
them, and `resolve()` builds the dataclasses back, checking every name, type and combination once.
"""

import dataclasses
import difflib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from absl import flags
from ml_collections import ConfigDict, config_dict, config_flags

import rope_lab
from rope_lab.data.pipeline import DataConfig, stages
from rope_lab.model.llama import LlamaConfig
from rope_lab.probes.suite import ProbeConfig
from rope_lab.rotary import VARIANTS, AbstractPositionEncoding
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


def default() -> ConfigDict:
    """Every field with its default, or a typed placeholder where a config must choose; locked, so a misspelt name is an error."""
    config = ConfigDict({"rotary": _rotary_fields()} | {name: _fields(kind) for name, kind in _sections().items()})
    config.lock()
    return config


def load(path: str, overrides: list[str]) -> ConfigDict:
    """Runs `get_config()` of a config file, `PATH` or `PATH:ARGUMENT`, and applies `--config.section.field=value` overrides.

    A path that does not exist from here is looked up among the configs that come with rope_lab.

    Raises:
      ValueError: naming the file, or the override and what it should have been.
    """
    file, colon, argument = path.partition(":")
    holder = flags.FlagValues()
    argv = ["rope-lab", f"--config={_find(file)}{colon}{argument}", *overrides]
    config_flags.DEFINE_config_file("config", flag_values=holder, sys_argv=argv)
    try:
        unused = holder(argv)[1:]
    except (AttributeError, KeyError) as error:  # ConfigDict's errors for an unknown name
        raise ValueError(f"unknown config key in {' '.join(overrides)}: {_one_line(error)}") from error
    except (flags.Error, TypeError, OSError) as error:
        raise ValueError(_one_line(error)) from error
    if unused:
        raise ValueError(f"{' '.join(unused)!r} is not understood; overrides look like --config.rotary.base=1e6")
    config = holder["config"].value
    assert config is not None
    return config


def resolve(config: ConfigDict) -> Config:
    """Checks a ConfigDict and turns it into frozen dataclasses.

    Raises:
      ValueError: naming the key, its value and the remedy: unknown or missing keys, wrong types, impossible combinations.
    """
    known = {"rotary": None, **_sections()}
    _reject_unknown(config, known, "config")
    parts = {name: _build(kind, config[name], name) for name, kind in _sections().items()}
    result = Config(rotary=_build_rotary(config.rotary), **parts)
    _check_together(result)
    return result


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
    """`variant`, and the fields of all variants, each unset: a variant's own default holds until a config says otherwise."""
    fields: dict[str, Any] = {"variant": "rope"}
    for variant in VARIANTS.values():
        for name, kind in typing.get_type_hints(variant).items():
            inner, _ = _strip_none(kind)
            fields[name] = config_dict.placeholder(typing.get_origin(inner) or inner)
    return fields


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


def _build_rotary(config: ConfigDict) -> AbstractPositionEncoding:
    _reject_unknown(config, _rotary_fields(), "rotary")
    if config.variant not in VARIANTS:
        near = difflib.get_close_matches(config.variant, VARIANTS, 1)
        raise ValueError(
            f"rotary.variant={config.variant!r} is unknown{f' (did you mean {near[0]!r}?)' if near else ''}; one of {', '.join(VARIANTS)}"
        )
    variant = VARIANTS[config.variant]
    hints = typing.get_type_hints(variant)
    given = {name: value for name, value in config.items() if name != "variant" and value is not None}
    for name, value in given.items():
        if name not in hints:
            users = [other for other, kind in VARIANTS.items() if name in typing.get_type_hints(kind)]
            raise ValueError(f"rotary.{name}={value} means nothing to variant {config.variant!r}; unset it, or choose {' or '.join(users)}")
    for field in dataclasses.fields(typing.cast(Any, variant)):
        if field.default is dataclasses.MISSING and field.name not in given:
            raise ValueError(f"rotary.{field.name} is not set; variant {config.variant!r} needs it: --config.rotary.{field.name}=...")
    return variant(**{name: _checked(value, _strip_none(hints[name])[0], f"rotary.{name}") for name, value in given.items()})


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


def _reject_unknown(config: Any, known: Any, path: str) -> None:
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{path}={config!r} must be a group of fields: {', '.join(sorted(known))}")
    for key in config:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise ValueError(f"unknown config key {path}.{key}{f'; did you mean {near[0]!r}?' if near else ''}")


def _check_together(config: Config) -> None:
    plan = stages(config.train.curriculum, config.train.tokens_per_step)
    for stage in plan:
        if stage.rows % config.train.microbatches:
            raise ValueError(
                f"train.microbatches={config.train.microbatches} must divide the {stage.rows} rows of a step "
                f"at context length {stage.length}"
            )
    if config.init.step is not None and config.init.from_ is None:
        raise ValueError(f"init.step={config.init.step} needs init.from, the run folder it is a step of")
    config.rotary.table(config.model.head_dim, plan[-1].length, 1)  # the variant's own checks against head_dim


def _find(file: str) -> Path:
    package = Path(rope_lab.__file__).parent
    shipped = next(folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir())
    for candidate in (Path(file), shipped / Path(file).name):
        if candidate.is_file():
            return candidate.absolute()
    names = ", ".join(f"configs/{path.name}" for path in sorted(shipped.glob("*.py")))
    raise ValueError(f"config file {file!r} does not exist; rope_lab comes with {names}")


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _one_line(error: BaseException) -> str:
    text = error.args[0] if error.args else error  # a KeyError's str() is a quoted repr
    return " ".join(str(text).split())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
