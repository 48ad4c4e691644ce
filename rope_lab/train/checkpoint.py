"""Checkpoints: the only file that knows Orbax.

A checkpoint holds four parts, so that a probe or a fork can load parameters alone:

    params      the float32 master parameters
    optimizer   optax's state
    progress    {"step", "tokens_seen"}
    data        {"next_step": the whole data position}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from rope_lab.train.state import TrainState

_policies = ocp.training.preservation_policies


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save, and what to keep.

    Attributes:
      every_steps: steps between saves; the last step is saved in any case.
      keep_last: the newest so many are kept.
      keep_every_steps: steps that are multiples of this are kept for good (milestones); None: no milestones.
      keep_best: so many with the largest `best_metric` are kept besides, of equal ones the newest; 0: none for its metric's sake.
      best_metric: a probe's metric, by its full name. A step at which the probe did not run, or failed, is never among the best.
    """

    every_steps: int = 1000
    keep_last: int = 2
    keep_every_steps: int | None = None
    keep_best: int = 0
    best_metric: str = "probe/kv_by_distance/effective_length_tokens"

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep_last"):
            if getattr(self, name) < 1:
                raise ValueError(f"checkpoint.{name}={getattr(self, name)} must be at least 1")
        if self.keep_best < 0:
            raise ValueError(f"checkpoint.keep_best={self.keep_best} must be at least 0")
        if self.keep_every_steps is not None and (self.keep_every_steps < 1 or self.keep_every_steps % self.every_steps):
            raise ValueError(f"checkpoint.keep_every_steps={self.keep_every_steps} must be a multiple of every_steps={self.every_steps}")


class Checkpoints:
    """The checkpoints of one run folder. Saves are asynchronous; only committed ones are ever listed.

    Args:
      folder: the run folder; checkpoints live in its `checkpoints/`.
      config: what to keep; None for a reader.
    """

    def __init__(self, folder: Path, config: CheckpointConfig | None = None):
        keep: list[Any] = [_policies.LatestN(config.keep_last)] if config else [_policies.PreserveAll()]
        if config and config.keep_every_steps:
            keep.append(_policies.EveryNSteps(config.keep_every_steps))
        self._best = config.best_metric if config and config.keep_best else None
        if config and self._best:
            keep.append(
                _policies.BestN(
                    get_metric_fn=lambda metrics: metrics[config.best_metric],  # sorted upwards and stably: of equal ones the last is kept
                    n=config.keep_best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        policy: Any = _policies.AnyPreservationPolicy(keep)
        self._folder = folder
        self._checkpointer = ocp.training.Checkpointer(
            str((folder / "checkpoints").absolute()),
            preservation_policy=policy,
            cleanup_tmp_directories=config is not None,  # what a killed run left half-written
        )

    def steps(self) -> list[int]:
        """Committed steps, oldest first."""
        return [checkpoint.step for checkpoint in self._checkpointer.checkpoints]

    def save(self, step: int, state: TrainState, found: Mapping[str, float] | None = None) -> None:
        """Starts writing `state`; returns once it is copied off the devices. An earlier save that failed raises here.

        Args:
          step: of the state.
          state: what to save.
          found: what probes measured on this very state, by full metric name; `config.best_metric` is kept with it where it is among them.
        """
        parts = {
            "params": state.params,
            "optimizer": state.opt_state,
            "progress": {"step": state.step, "tokens_seen": state.tokens_seen},
            "data": {"next_step": step},
        }
        metrics: Any = {self._best: found[self._best]} if self._best and found and self._best in found else None
        self._checkpointer.save_checkpointables_async(step, parts, force=True, metrics=metrics)

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state of a committed step, laid out as `abstract` says.

        Args:
          step: one of `steps()`.
          abstract: `jax.ShapeDtypeStruct` leaves with shardings; the mesh need not be the one that saved.
        """
        wanted = {
            "params": abstract.params,
            "optimizer": abstract.opt_state,
            "progress": {"step": abstract.step, "tokens_seen": abstract.tokens_seen},
            "data": {"next_step": 0},
        }
        parts = self._checkpointer.load_checkpointables(step, wanted)
        assert parts["data"]["next_step"] == step
        return TrainState(parts["params"], parts["optimizer"], parts["progress"]["step"], parts["progress"]["tokens_seen"])

    def restore_params(self, step: int | None, abstract_params: dict) -> tuple[dict, int]:
        """Parameters alone, and the step they are of; `step` None means the newest.

        Raises:
          ValueError: if there is no such committed step.
        """
        steps = self.steps()
        if not steps or (step is not None and step not in steps):
            raise ValueError(
                f"{self._folder} has no checkpoint{'' if step is None else f' of step {step}'}; steps it has: {steps or 'none'}"
            )
        chosen = steps[-1] if step is None else step
        return self._checkpointer.load_checkpointables(chosen, {"params": abstract_params})["params"], chosen

    def wait(self) -> None:
        """Blocks until every started save is committed, and raises if one failed."""
        self._checkpointer.wait()

    def close(self) -> None:
        """Waits, and lets go of the folder."""
        self._checkpointer.close()


def abstract_like(tree: Any, shardings: Any) -> Any:
    """Shapes and dtypes of `tree` with these shardings: what restoring needs."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)
