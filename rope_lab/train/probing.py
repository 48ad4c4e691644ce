"""Probes inside training: when they run, where their results go, and why none of them can hurt the run.

A probe is `probe(params) -> (scalars, arrays)`. Its result is kept as `probes/NAME/step_STEP.npz` in the run folder, with the scalars and
the probe's settings in a JSON file of the same name beside it.
"""

import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from rich.console import Console

from rope_lab.metrics import MetricWriter

Probe = Callable[[dict], tuple[dict[str, float], dict[str, np.ndarray]]]
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Probing:
    """The probes of a run and their schedule.

    Attributes:
      probes: by name.
      settings: by name, JSON-ready: what a probe's result depends on besides the parameters; kept beside it.
      draw: `draw(name, arrays)` makes the figure that TensorBoard shows, or None.
      every_steps: steps between probes; they run at the last step in any case.
      every_tokens: tokens between probes; where set, it rules, and `every_steps` is not looked at.
    """

    probes: Mapping[str, Probe]
    settings: Mapping[str, Mapping[str, Any]]
    draw: Callable[[str, Mapping[str, np.ndarray]], Any]
    every_steps: int
    every_tokens: int | None = None

    def due(self, step: int, before: int, after: int) -> bool:
        """Whether it is time after `step`, which took the count of tokens seen from `before` to `after`.

        By tokens it is time where the count reaches or passes a multiple, so that a resumed run, whose count goes on, probes at the steps
        where the other would have.
        """
        if self.every_tokens is None:
            return step % self.every_steps == 0
        return after // self.every_tokens > before // self.every_tokens

    def run(self, params: dict, step: int, folder: Path, writer: MetricWriter, console: Console) -> dict[str, float]:
        """Runs every probe. What one of them breaks is told in the metrics and on the console, and goes no further.

        With several processes a probe's forward passes are collective. One that fails in all of them, or in one of them once its last pass
        is done (the disk of process 0 is full), is told like any other. One that fails in a single process between two passes leaves the
        others waiting in the next, and nothing here can wake them: the job has to be stopped and resumed from its last checkpoint.

        Args:
          params: of the model.
          step: whose parameters they are.
          folder: the run folder.
          writer: gets `probe/NAME/METRIC`; of a probe that failed `probe/NAME/failed` and `probe/NAME/error`.
          console: gets the traceback.

        Returns:
          The metrics of the probes that did not fail, by their full name.
        """
        found: dict[str, float] = {}
        for name in self.probes:
            outcome = attempt(lambda name=name: self._run_one(name, params, step, folder, writer))
            if isinstance(outcome, Failure):
                writer.write(step, {f"probe/{name}/failed": 1, f"probe/{name}/error": outcome.line})
                message = f"probe {name} failed at step {step}; training goes on\n{outcome.trace}"
                console.print(message, markup=False, highlight=False, soft_wrap=True)
            else:
                found |= outcome
        return found

    def _run_one(self, name: str, params: dict, step: int, folder: Path, writer: MetricWriter) -> dict[str, float]:
        start = time.perf_counter()
        scalars, arrays = self.probes[name](jax.tree.map(lambda array: array, params))  # dicts of its own, to do with as it likes
        if jax.process_index() == 0:
            keep_result(folder, name, step, scalars, arrays, self.settings[name])
            figure = self.draw(name, arrays)
            if figure is not None:
                writer.figure(step, f"probe/{name}", figure)
        measured = {f"probe/{name}/{metric}": value for metric, value in scalars.items()}
        writer.write(step, measured | {f"probe/{name}/seconds": time.perf_counter() - start})
        return measured


class Failure(NamedTuple):
    """What went wrong in a probe: one line for the metrics, the traceback for the log."""

    line: str
    trace: str


def attempt(work: Callable[[], Result]) -> Result | Failure:
    """What `work` returns, or how it failed. An interrupt is no `Exception`, and passes."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  a run, and the other probes, must outlive whatever one probe does wrong
        return Failure(" ".join(f"{type(error).__name__}: {error}".split()), traceback.format_exc())


def keep_result(
    folder: Path, name: str, step: int, scalars: Mapping[str, float], arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]
) -> None:
    """Writes what a probe found to `probes/NAME/step_STEP.npz` and `.json` in a run folder, each whole or not at all, the JSON last."""
    path = result_path(folder, name, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)  # what it says is no longer of these arrays
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    unfinished.replace(path)
    unfinished.write_text(json.dumps({"step": step, "scalars": dict(scalars), "settings": dict(settings)}, indent=2) + "\n")
    unfinished.replace(path.with_suffix(".json"))


def kept_scalars(folder: Path, name: str, step: int, settings: Mapping[str, Any]) -> dict[str, float] | None:
    """The scalars that a probe with these settings found at a step of a run; None where it has not run, or with other settings."""
    path = result_path(folder, name, step).with_suffix(".json")
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    return result["scalars"] if result["settings"] == json.loads(json.dumps(settings)) else None


def result_path(folder: Path, name: str, step: int) -> Path:
    """Where a run folder keeps a probe's arrays."""
    return folder / "probes" / name / f"step_{step:08d}.npz"
