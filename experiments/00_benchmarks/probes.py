"""What probes cost: their share of training time at the default cadence, and scoring beside generation; see README.md beside this file."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from rope_lab.assembly import Assembly, assemble, first_state
from rope_lab.config import Config, load, resolve
from rope_lab.model.flops import train_flops_per_token
from rope_lab.model.generate import generate
from rope_lab.probes.kv_by_distance import KVByDistanceProbe
from rope_lab.probes.retrieval import generated_matches
from rope_lab.probes.suite import Bench
from rope_lab.probes.tasks import TASKS
from rope_lab.train.sharding import batch_sharding
from rope_lab.train.step import make_train_step

MOST_SHARE = 0.03
"""Share of training time that the default probes may take."""

DOCUMENTS = 8
"""Held-out books of the sample."""

SHORT = [
    "probes.names=()",
    "train.curriculum=((512, 1000),)",
    "train.tokens_per_step=4096",
    "train.microbatches=1",
    "optimizer.warmup_steps=1",
]


def seconds(work: Callable[[], Any], rounds: int) -> float:
    """Median time of `work`, after one call that compiles."""
    jax.block_until_ready(work())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def open_at(path: str, overrides: list[str]) -> Assembly:
    return assemble(resolve(load(path, [f"--config.{override}" for override in overrides])))


def measured_share(path: str, overrides: list[str], step_tokens: int, rounds: int) -> dict[str, float]:
    """The default probes of a config on an eighth of their rows, and its step on `step_tokens` tokens, both scaled to the config's own.

    A forward pass's time goes with its tokens, so an eighth of the rows is an eighth of the time; compilation is left out of both.
    """
    whole, parts = resolve(load(path, [])), 8
    rows, windows = whole.probes.kv_by_distance.rows, whole.probes.perplexity.windows_per_document
    fewer = (f"probes.kv_by_distance.rows={rows // parts}", f"probes.perplexity.windows_per_document={windows // parts}")
    assembly = open_at(path, [*overrides, *fewer, f"train.tokens_per_step={step_tokens}", "train.microbatches=1"])
    state = first_state(assembly)
    step = jax.jit(make_train_step(assembly.trainable.graph, assembly.trainable.optimizer, 1))
    batch = jax.device_put(assembly.pipeline.dataset(assembly.stages)[0].batch, batch_sharding(assembly.mesh))
    step_seconds = seconds(lambda: step(state, batch), rounds)
    probing = {name: parts * seconds(lambda probe=probe: probe(state.params)[0], 1) for name, probe in assembly.probes.items()}
    training = whole.probes.every_steps * whole.train.tokens_per_step / step_tokens * step_seconds
    return {
        f"seconds of {whole.probes.every_steps} steps": training,
        **{f"seconds of {name}": value for name, value in probing.items()},
        "share of training time": sum(probing.values()) / (training + sum(probing.values())),
    }


def counted_share(config: Config, documents: int) -> float:
    """The same by floating-point operations: a probe's forward pass is a third of a training step's, for each token.

    Args:
      config: of the run.
      documents: held-out documents, each long enough for all its windows.
    """
    length = config.probes.length or config.train.curriculum[-1][0]
    tokens = (documents * config.probes.perplexity.windows_per_document + config.probes.kv_by_distance.rows) * length
    per_token = train_flops_per_token(config.model, length, causal=False)
    probing = tokens * per_token / 3
    training = config.probes.every_steps * config.train.tokens_per_step * per_token
    return probing / (training + probing)


def kv_ratio(assembly: Assembly, rounds: int) -> tuple[float, float, int]:
    """Seconds of the key-value probe's one pass a row, and seconds to generate the answer of each of its questions on its own.

    Generation takes all prompts at one length, the context's, padded in front: batches of prompts that end anywhere need that.

    Returns:
      Both, and how many questions there are.
    """
    probe = assembly.probes["kv_by_distance"]
    assert isinstance(probe, KVByDistanceProbe)
    planted, surface = probe.planted, assembly.pipeline.surface
    assert surface is not None
    length = planted.tokens.shape[1] - 1
    asked = [(row, int(end)) for row, slots in enumerate(planted.query_end) for end in slots if end >= 0]
    prompts = np.stack([np.concatenate([planted.tokens[row, end + 1 : length], planted.tokens[row, : end + 1]]) for row, end in asked])
    params, graph = first_state(assembly).params, assembly.trainable.graph
    batch = max(1, 16_384 // length)

    def generated() -> list[np.ndarray]:
        parts = range(0, len(prompts) // batch * batch, batch)  # whole batches: one shape
        return [generate(graph, params, prompts[i : i + batch], surface.answers.shape[1]) for i in parts]

    return seconds(lambda: probe(params)[0], rounds), seconds(generated, rounds), len(asked)


def task_ratio(assembly: Assembly, name: str, rounds: int) -> tuple[float, float]:
    """Seconds to score a task's prompts at the config's context length, and to generate their answers in batches through the cache."""
    config = assembly.config
    length = assembly.stages[-1].length
    graph, sharding = assembly.trainable.graph, batch_sharding(assembly.mesh)
    bench = Bench(config.probes, config.data, length, assembly.pipeline.tokenizer, graph, sharding)
    prompts = TASKS[name](samples=4).prompts(bench.writer, length, np.repeat(TASKS[name]().depths, 4))
    params = first_state(assembly).params
    scored = seconds(lambda: bench.scorer.answers(params, prompts.tokens, prompts.answer_length, prompts.distractors).predicted, rounds)
    return scored, seconds(lambda: generated_matches(graph, params, prompts), rounds)


def main() -> int:
    """Prints both tables; exit code 1 where the default probes take more than their share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each time, of which the median counts")
    parser.add_argument("--step-tokens", type=int, default=4096, help="tokens of the 60M step that is timed")
    args = parser.parse_args()
    console = Console()

    sample = ["data.path=None", "data.weights=()", "data.tokenizer=bpe_8k", "data.retrieval.surface=token", "model.compute_dtype=float32"]
    measured = measured_share("configs/llama_60m.py", sample, args.step_tokens, args.rounds)
    table = Table("configs/llama_60m.py, default probes and cadence", "measured", title=f"a step of {args.step_tokens} tokens")
    for name, value in measured.items():
        table.add_row(name, f"{value:.3%}" if name.startswith("share") else f"{value:.2f}")
    for name in ("llama_60m", "llama_2b"):
        table.add_row(f"share by FLOPs, configs/{name}.py", f"{counted_share(resolve(load(f'configs/{name}.py', [])), DOCUMENTS):.3%}")
    console.print(table)

    tiny = open_at("configs/tiny.py", ["probes.names=('kv_by_distance',)"])
    larger = open_at("configs/llama_60m.py", [*sample, *SHORT])
    scored, generated, asked = kv_ratio(tiny, args.rounds)
    table = Table("prompts", "scored (s)", "generated (s)", "ratio", title="the same questions, teacher-forced and generated")
    table.add_row(f"kv_by_distance, tiny at 256, {asked} questions", f"{scored:.2f}", f"{generated:.2f}", f"{generated / scored:.1f}")
    for title, assembly, names in (("tiny", tiny, tuple(TASKS)), ("60M", larger, ("needle",))):
        for name in names:
            scored, generated = task_ratio(assembly, name, args.rounds)
            where = f"{name}, {title} at {assembly.stages[-1].length}"
            table.add_row(where, f"{scored:.2f}", f"{generated:.2f}", f"{generated / scored:.1f}")
    console.print(table)
    return 0 if measured["share of training time"] <= MOST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
