"""From a checked config to the objects of a run: mesh, data, model, probes. What training and probing share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rope_lab.config import Config, resolve
from rope_lab.data.pipeline import Pipeline, Stage, open_pipeline, stages
from rope_lab.model.llama import Llama
from rope_lab.probes.suite import Bench, Probe, make_probes
from rope_lab.runs import open_config
from rope_lab.train.checkpoint import Checkpoints
from rope_lab.train.loop import Trainable, build, forked_state, fresh_state
from rope_lab.train.sharding import batch_sharding, make_mesh
from rope_lab.train.state import TrainState


class Assembly(NamedTuple):
    """Attributes:
    config: what all this was made from.
    mesh: the devices.
    stages: the length curriculum, laid out in steps.
    pipeline: the training batches.
    trainable: the model and its optimizer, as shapes.
    probes: by name.
    """

    config: Config
    mesh: jax.sharding.Mesh
    stages: tuple[Stage, ...]
    pipeline: Pipeline
    trainable: Trainable
    probes: dict[str, Probe]


def assemble(config: Config, probes: tuple[str, ...] | None = None) -> Assembly:
    """Opens the data and builds the model for the devices here; no parameter is made yet.

    Args:
      config: of the run.
      probes: which are made; None: those that `config.probes.names`.

    Raises:
      ValueError: if the parts do not fit each other, naming both values.
    """
    mesh = make_mesh(config.mesh)
    plan = stages(config.train.curriculum, config.train.tokens_per_step)
    pipeline = open_pipeline(config.data)
    if pipeline.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"model.vocab_size={config.model.vocab_size} is too small: the data uses {pipeline.vocab_size} ids (tokenizer "
            f"{pipeline.tokenizer.name!r} and the retrieval surface); set --config.model.vocab_size={pipeline.vocab_size} or more"
        )
    ways = mesh.shape["data"] * mesh.shape["fsdp"] * config.train.microbatches
    for stage in plan:
        pipeline.check(stage)
        if stage.rows % ways:
            raise ValueError(
                f"train.tokens_per_step={config.train.tokens_per_step} gives {stage.rows} rows at context length {stage.length}, which "
                f"mesh.data x mesh.fsdp x train.microbatches = {ways} does not divide"
            )
    total_steps = plan[-1].first_step + plan[-1].num_steps
    trainable = build(partial(Llama, config.model, config.rotary), config.optimizer, total_steps, mesh)
    bench = Bench(config.probes, config.data, plan[-1].length, pipeline.tokenizer, trainable.graph, batch_sharding(mesh))
    made = make_probes(bench, config.probes.names if probes is None else probes)
    return Assembly(config, mesh, plan, pipeline, trainable, made)


def probe_settings(config: Config, name: str) -> dict[str, Any]:
    """What the result of the probe `name` depends on, of all that can differ between two probings of one checkpoint."""
    return {
        "length": probed_length(config),
        "path": config.probes.path,
        "windows_per_document": config.probes.perplexity.windows_per_document,  # several probes read these windows
        name: asdict(getattr(config.probes, name)),
    }


def probed_length(config: Config) -> int:
    """Context length that probes look at, tokens."""
    return config.probes.length or stages(config.train.curriculum, config.train.tokens_per_step)[-1].length


def check_origin(config: Config, workdir: str) -> None:
    """Makes sure that the run which `init.from` names can be forked; one resumed in `workdir` no longer needs it.

    Raises:
      ValueError: if its model has another shape, or there is no such checkpoint.
    """
    origin = config.init.from_
    if origin is None or checkpoint_steps(Path(workdir)):
        return
    theirs, ours = asdict(resolve(open_config(origin)).model), asdict(config.model)
    differing = [
        f"model.{name} is {theirs[name]!r} there, {ours[name]!r} here"
        for name in theirs
        if theirs[name] != ours[name] and name not in ("compute_dtype", "attention", "remat", "scan_unroll")  # numerics may change
    ]
    if differing:
        raise ValueError(f"init.from={origin!r} holds another model: {'; '.join(differing)}; set them alike")
    steps = checkpoint_steps(Path(origin))
    if not steps or config.init.step not in (None, *steps):
        raise ValueError(f"init.from={origin!r} with init.step={config.init.step}: choose one of the steps it has: {steps or 'none yet'}")


def first_state(assembly: Assembly) -> TrainState:
    """The state of step 0: fresh, or with the parameters of the run that `init.from` names; `check_origin` has seen it."""
    config = assembly.config
    if config.init.from_ is None:
        return fresh_state(assembly.trainable, config.train.seed)
    params, _ = load_params(Path(config.init.from_), config.init.step, assembly.trainable)
    return forked_state(assembly.trainable, params)


def checkpoint_steps(folder: Path) -> list[int]:
    """Committed steps of a run folder, oldest first; none where there is no run."""
    if not (folder / "checkpoints").is_dir():
        return []
    checkpoints = Checkpoints(folder)
    steps = checkpoints.steps()
    checkpoints.close()
    return steps


def load_params(folder: Path, step: int | None, trainable: Trainable) -> tuple[dict, int]:
    """Parameters of a run's checkpoint (the newest, for None) on this mesh, and their step."""
    checkpoints = Checkpoints(folder)
    params, found = checkpoints.restore_params(step, trainable.abstract.params)
    checkpoints.close()
    return params, found


@contextmanager
def past_the_wall(what: str) -> Iterator[None]:
    """For work whose input is checked: a ValueError in here is a fault of ours, and must not be told as the user's bad input."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        raise RuntimeError(f"{what} failed") from error
