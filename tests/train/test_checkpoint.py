"""Which checkpoints stay."""

from pathlib import Path

import jax.numpy as jnp
import pytest

from rope_lab.train.checkpoint import CheckpointConfig, Checkpoints
from rope_lab.train.state import TrainState


def state(step: int) -> TrainState:
    return TrainState({"w": jnp.full(2, step)}, {"m": jnp.zeros(2)}, jnp.int32(step), jnp.zeros(2, jnp.uint32))


def saved(folder: Path, settings: CheckpointConfig, found: dict[int, float | None]) -> list[int]:
    """The steps that are left after saving each with what its probe found, or without."""
    checkpoints = Checkpoints(folder, settings)
    for step, length in found.items():
        checkpoints.save(step, state(step), None if length is None else {settings.best_metric: length, "probe/needle/accuracy": 1 / step})
        checkpoints.wait()
    checkpoints.close()
    return Checkpoints(folder).steps()


@pytest.mark.parametrize(
    ("settings", "found", "left"),
    [
        ({}, {1: 64, 2: 16, 3: 32}, [3]),
        ({"keep_best": 1}, {1: 64, 2: 16, 3: 32}, [1, 3]),
        ({"keep_best": 1}, {1: 64, 2: 64, 3: 32, 4: 8}, [2, 4]),  # of equal ones the newest
        ({"keep_best": 2}, {1: 64, 2: 16, 3: 32, 4: 8, 5: 16}, [1, 3, 5]),
        ({"keep_best": 2}, {1: 64, 2: None, 3: 32, 4: None, 5: None}, [1, 3, 5]),  # a probe that fails loses no best, and is none
        ({"keep_best": 1, "keep_every_steps": 2}, {1: 64, 2: 16, 3: 32, 4: 8, 5: 8}, [1, 2, 4, 5]),
        ({"keep_best": 1, "best_metric": "probe/needle/effective_length_tokens"}, {1: 0, 2: 16, 3: 0}, [2, 3]),
    ],
)
def test_the_best_checkpoints_are_kept_besides_the_last(tmp_path: Path, settings: dict, found: dict, left: list[int]):
    assert saved(tmp_path, CheckpointConfig(every_steps=1, keep_last=1, **settings), found) == left


def test_a_resumed_run_remembers_which_was_best(tmp_path: Path):
    settings = CheckpointConfig(every_steps=1, keep_last=1, keep_best=1)
    assert saved(tmp_path, settings, {1: 64, 2: 16}) == [1, 2]
    assert saved(tmp_path, settings, {3: 32}) == [1, 3]
    assert saved(tmp_path, settings, {4: 65, 5: 0}) == [4, 5]
    restored = Checkpoints(tmp_path).restore(4, state(0))
    assert (int(restored.step), restored.params["w"].tolist()) == (4, [4, 4])
