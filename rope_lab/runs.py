"""A run folder: what was asked for, with what, and everything that came of it.

config.json      the resolved config            metrics.jsonl, tensorboard/   numbers by step
spectrum.json    theta and attention factor     checkpoints/                  Orbax, one folder a step
versions.json    git revision and packages      probes/NAME/step_*            each probe's arrays (.npz) and scalars (.json)
"""

import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

import rope_lab
from rope_lab.config import Config, default, resolve, to_dict
from rope_lab.metrics import read_metrics
from rope_lab.rotary import Scaled, Variant

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "tensorstore", "ml-collections", "numpy")


def open_run(workdir: str, config: ConfigDict) -> Path:
    """Makes a run folder for this config, or finds the one it already has.

    Raises:
      ValueError: if the folder holds a run with another config (the differing keys are named), or is not a run folder.
    """
    folder = Path(workdir).absolute()
    wanted = _json_ready(config)
    if jax.process_index() == 0 and not (folder / "config.json").exists():
        # What a start that was killed right here left behind is ours to write again.
        if folder.is_dir() and any(path.stem not in ("config", "spectrum", "versions") for path in folder.iterdir()):
            raise ValueError(f"workdir {workdir!r} is not empty and holds no run (no config.json); choose another folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"workdir {workdir!r} cannot be made ({error.strerror}); choose another folder") from error
        _write(folder / "spectrum.json", _spectrum(resolve(config)))
        _write(folder / "versions.json", _versions())
        _write(folder / "config.json", wanted)  # last: it marks the folder as a run
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("run folder made")
    require_same_config(folder, config)
    return folder


def require_same_config(folder: Path, config: ConfigDict) -> None:
    """Makes sure that the run in `folder` was made with this config; a field younger than the run had its default then.

    Raises:
      ValueError: naming the keys that differ.
    """
    _reject_difference(folder, _read_config(folder), _json_ready(config), _json_ready(default()))


def open_config(workdir: str) -> ConfigDict:
    """The config of an existing run folder.

    Raises:
      ValueError: if there is no run there.
    """
    folder = Path(workdir)
    if not (folder / "config.json").exists():
        raise ValueError(f"workdir {workdir!r} holds no run (no config.json); `rope-lab train --workdir={workdir}` makes one")
    config = default()
    try:
        with config.unlocked():
            config.update(_read_config(folder))
    except TypeError as error:
        raise ValueError(f"{folder / 'config.json'} does not fit this version of rope_lab: {error}") from error
    return config


class ProbeResult(NamedTuple):
    """What a probe found at a step: scalars by metric name, arrays by name."""

    step: int
    scalars: dict[str, float]
    arrays: dict[str, np.ndarray]


def probe_results(folder: Path, probe: str) -> list[ProbeResult]:
    """Every result of a probe that a run folder holds, in the order of the steps: its arrays, and the scalars beside or in the metrics."""
    prefix, logged, results = f"probe/{probe}/", {}, []
    for line in read_metrics(folder):
        logged[line["step"]] = logged.get(line["step"], {}) | {k.removeprefix(prefix): v for k, v in line.items() if k.startswith(prefix)}
    for path in sorted((folder / "probes" / probe).glob("step_*.npz")):
        step, beside = int(path.stem.removeprefix("step_")), path.with_suffix(".json")
        scalars = json.loads(beside.read_text())["scalars"] if beside.exists() else logged.get(step)
        if scalars:
            with np.load(path) as arrays:
                results.append(ProbeResult(step, scalars, dict(arrays)))
    return results


def _read_config(folder: Path) -> dict:
    path = folder / "config.json"
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); choose another --workdir, or bring the file back") from error


def _json_ready(config: ConfigDict) -> dict:
    return json.loads(json.dumps(to_dict(config)))


def _reject_difference(folder: Path, held: dict, wanted: dict, defaults: dict) -> None:
    before, after = dict(_leaves(defaults) + _leaves(held)), dict(_leaves(wanted))
    changed = [key for key in sorted(before | after) if before.get(key) != after.get(key)]
    if changed:
        shown = "; ".join(f"{key} is {before.get(key)!r} there, {after.get(key)!r} here" for key in changed[:5])
        raise ValueError(f"workdir {str(folder)!r} holds a run with another config: {shown}; choose another --workdir, or the same config")


def _leaves(tree: dict, prefix: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for key, value in tree.items():
        pairs += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs


def _spectrum(config: Config) -> dict:
    encoding = config.rotary.encoding if isinstance(config.rotary, Scaled) else config.rotary
    if not isinstance(encoding, Variant):
        return {"variant": repr(config.rotary)}
    spectrum = encoding.spectrum(config.model.head_dim, config.train.curriculum[-1][0])
    return {
        "variant": repr(config.rotary),
        "head_dim": config.model.head_dim,
        "length_tokens": config.train.curriculum[-1][0],
        "theta_radians_per_token": spectrum.theta.tolist(),
        "attention_factor": spectrum.attention_factor,
    }


def _versions() -> dict:
    here = str(Path(rope_lab.__file__).parent)

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # a wheel inside somebody's repository is none of its files
        revision = git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        revision = None
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"rope_lab": rope_lab.__version__, "git_revision": revision, "python": platform.python_version(), **packages}


def _write(path: Path, content: dict) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(content, indent=2) + "\n")
    unfinished.replace(path)
