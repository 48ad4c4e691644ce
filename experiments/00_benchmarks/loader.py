"""Does the data pipeline keep up? Its tokens/s beside those that the tiny model's train step eats; see README.md beside this file."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from rope_lab.assembly import Assembly, assemble, first_state
from rope_lab.config import load, resolve
from rope_lab.data.pipeline import Batch, Stage
from rope_lab.train.sharding import batch_sharding
from rope_lab.train.step import make_train_step

WANTED = 5.0
"""Times the step's tokens/s that one thread of the pipeline must serve: a loader that only keeps up stalls at the first hiccup."""


class Rates(NamedTuple):
    """Tokens/s of each round; one round is one stretch of the pipeline and one of the step, right after each other."""

    served: np.ndarray
    eaten: np.ndarray


def tokens_per_second(batches: Iterable[Batch], use: Callable[[Batch], object], finish: Callable[[], object]) -> float:
    start = time.perf_counter()
    tokens = 0
    for batch in batches:
        use(batch)
        tokens += batch.tokens.size
    finish()
    return tokens / (time.perf_counter() - start)


class Eater:
    """The train step, fed batches that already lie on the device."""

    def __init__(self, assembly: Assembly):
        step = make_train_step(assembly.trainable.graph, assembly.trainable.optimizer, assembly.config.train.microbatches)
        self._step = jax.jit(step, donate_argnums=0)
        self._state = first_state(assembly)

    def eat(self, batch: Batch) -> None:
        self._state, _ = self._step(self._state, batch)

    def finish(self) -> None:
        jax.block_until_ready(self._state)


def measure(assembly: Assembly, rounds: int) -> dict[Stage, Rates]:
    """Alternates short stretches of both, so that whatever else the machine does weighs on both alike."""
    eater = Eater(assembly)
    sharding = batch_sharding(assembly.mesh)
    result = {}
    for stage in assembly.stages:
        dataset = assembly.pipeline.dataset((stage,))
        on_device = [jax.device_put(dataset[step].batch, sharding) for step in range(12)]  # opens the stores, too
        tokens_per_second(on_device[:1], eater.eat, eater.finish)  # compiles
        served, eaten = [], []
        for steps in np.array_split(np.arange(stage.num_steps), rounds):
            batches = (dataset[step].batch for step in steps.tolist())
            served.append(tokens_per_second(batches, lambda batch: None, lambda: None))
            eaten.append(tokens_per_second(on_device, eater.eat, eater.finish))
        result[stage] = Rates(np.array(served), np.array(eaten))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/tiny.py")
    parser.add_argument("--rounds", type=int, default=7, help="stretches measured at each context length")
    arguments = parser.parse_args()
    table = Table(title="thousand tokens/s, median over rounds")
    for column in ("context", "rows a step", "pipeline, one thread", "train step", "ratio", "ratio, worst round"):
        table.add_column(column, justify="right")
    slowest = np.inf
    for stage, rates in measure(assemble(resolve(load(arguments.config, []))), arguments.rounds).items():
        ratios = rates.served / rates.eaten
        slowest = min(slowest, float(np.median(ratios)))
        numbers = [f"{np.median(rate) / 1e3:,.0f}" for rate in rates]
        table.add_row(str(stage.length), str(stage.rows), *numbers, f"{np.median(ratios):.1f}", f"{ratios.min():.1f}")
    console = Console()
    console.print(table)
    console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    enough = slowest >= WANTED
    console.print(f"{'enough' if enough else 'TOO SLOW'}: the slowest stage is served {slowest:.1f} times over; wanted: {WANTED:g}")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
