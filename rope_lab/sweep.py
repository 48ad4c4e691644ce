"""A sweep: the runs of one experiment as config overrides, and what trains those that are still missing.

`experiments/NN_question/sweep.py` defines `sweep(scale) -> list[Run]`; nothing in here knows an experiment.
"""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from rope_lab.assembly import checkpoint_steps
from rope_lab.config import load, resolve
from rope_lab.data.pipeline import stages
from rope_lab.runs import require_same_config


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a sweep.

    Attributes:
      name: of its folder.
      config: config file.
      overrides: `section.field=value`, as on the command line after `--config.`.
      start: name of the run of this sweep whose final parameters it starts from; None: what its config says.
    """

    name: str
    config: str
    overrides: tuple[str, ...]
    start: str | None = None

    def flags(self, workdir: Path) -> list[str]:
        """The overrides as command-line flags."""
        origin = [f"--config.init.from={workdir / self.start}"] if self.start else []
        return [*(f"--config.{override}" for override in self.overrides), *origin]


class _Job(NamedTuple):
    run: Run
    process: subprocess.Popen
    cores: tuple[int, ...]
    began: float


def finished(run: Run, workdir: Path) -> bool:
    """Whether a run's last step is saved.

    Raises:
      ValueError: if its folder holds a run with another config.
    """
    if not (workdir / run.name / "config.json").exists():
        return False
    config = load(run.config, run.flags(workdir))
    require_same_config(workdir / run.name, config)
    train = resolve(config).train
    last = stages(train.curriculum, train.tokens_per_step)[-1]
    return last.first_step + last.num_steps in checkpoint_steps(workdir / run.name)


def run_sweep(runs: Sequence[Run], workdir: Path, jobs: int, console: Console) -> list[Run]:
    """Trains what is missing, `jobs` runs at a time, each on its share of the cores and resumed where it was stopped.

    A run waits for the one it starts from. What a run prints goes to `NAME.log` beside its folder.

    Returns:
      The runs that failed, and those that waited for them.

    Raises:
      ValueError: for a name used twice, a start that is not in the sweep, or a folder that holds a run with another config.
    """
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            raise ValueError(f"the sweep names {run.name!r} twice")
        if run.start is not None and run.start not in names:
            raise ValueError(f"run {run.name!r} starts from {run.start!r}, which is not in the sweep: select it as well")
    done = {run.name for run in runs if finished(run, workdir)}
    waiting = deque(run for run in runs if run.name not in done)
    console.print(f"{len(runs)} runs, {len(done)} of them done; {jobs} at a time in {workdir}")
    workdir.mkdir(parents=True, exist_ok=True)
    idle, going, failed = _shares(jobs), [], []
    try:
        while waiting or going:
            for run in [run for run in waiting if run.start is None or run.start in done][: len(idle)]:
                waiting.remove(run)
                going.append(_start(run, workdir, idle.pop()))
            if not going:  # what is left waits for a run that failed
                failed += waiting
                break
            time.sleep(0.2)
            for job in [job for job in going if job.process.poll() is not None]:
                going.remove(job)
                idle.append(job.cores)
                seconds = time.perf_counter() - job.began
                if job.process.returncode == 0:
                    done.add(job.run.name)
                    console.print(f"{len(done)}/{len(runs)}  {job.run.name}  {seconds:.0f} s")
                else:
                    failed.append(job.run)
                    console.print(f"[red]failed[/red] with {job.process.returncode}: {job.run.name}; see {workdir / job.run.name}.log")
    finally:
        for job in going:
            job.process.terminate()  # a run saves and goes; the next call resumes it
        for job in going:
            job.process.wait()
    return failed


def _shares(jobs: int) -> list[tuple[int, ...]]:
    """The cores of this process dealt out to `jobs` runs; no run is pinned where there are fewer cores than runs, or no way to pin."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [tuple(cores[number::jobs]) if len(cores) >= jobs else () for number in range(jobs)]


def _start(run: Run, workdir: Path, cores: tuple[int, ...]) -> _Job:
    command = [sys.executable, "-m", "rope_lab", "train", f"--config={run.config}", f"--workdir={workdir / run.name}", *run.flags(workdir)]
    with (workdir / f"{run.name}.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    if cores:
        os.sched_setaffinity(process.pid, cores)  # before JAX has counted them
    return _Job(run, process, cores, time.perf_counter())
