"""The training loop: the only imperative file.

Reads aloud: make or restore the state; for each batch, dispatch a step; read the metrics of the step *before*, so that the device never
waits; probe, save and stop when it is time.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grain
import jax
import numpy as np
import optax
from flax import nnx
from jax.experimental import multihost_utils
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rope_lab.data.pipeline import Batch, HashedBatch, Pipeline, stages
from rope_lab.metrics import MetricWriter
from rope_lab.model.flops import parameter_count, train_flops_per_token
from rope_lab.model.llama import LlamaConfig
from rope_lab.train.checkpoint import CheckpointConfig, Checkpoints, abstract_like
from rope_lab.train.optimizer import OptimizerConfig, learning_rate, make_optimizer
from rope_lab.train.probing import Probing
from rope_lab.train.sharding import batch_sharding, constrain_to, param_shardings, state_shardings
from rope_lab.train.state import ModelFactory, TrainState, fingerprint, init_params, init_state, split_model, tokens_seen
from rope_lab.train.step import make_train_step

PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}
"""Dense bf16 FLOP/s of one device by `jax.Device.device_kind`, from the vendors' data sheets."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, and on what lengths.

    Attributes:
      curriculum: ((context length in tokens, steps), ...), in order.
      tokens_per_step: global batch in tokens, the same at every length.
      microbatches: parts a step's rows are cut into, their gradients added up.
      loss_chunk_tokens: tokens of a micro-batch whose logits exist at once, see `chunked_token_losses`; None: all of them.
      seed: of the initial parameters.
      peak_flops_per_device: FLOP/s that MFU is measured against; None: looked up by device, and no MFU where unknown.
    """

    curriculum: tuple[tuple[int, int], ...]
    tokens_per_step: int
    microbatches: int = 1
    loss_chunk_tokens: int | None = None
    seed: int = 0
    peak_flops_per_device: float | None = None


class TrainingDiverged(RuntimeError):
    """The loss stopped being a number; nothing later than the last good checkpoint was saved."""


class Preempted(BaseException):
    """SIGTERM came; everything up to the current step is saved. Like other interrupts it is no `Exception`, so that nothing swallows it."""


class Trainable(NamedTuple):
    """A model built for a mesh: what training, probing and planning share.

    Attributes:
      make: makes the model.
      graph: its structure.
      optimizer: its update.
      abstract: a `TrainState` of shapes with shardings.
    """

    make: ModelFactory
    graph: nnx.GraphDef
    optimizer: optax.GradientTransformation
    abstract: TrainState


def build(make: ModelFactory, optimizer: OptimizerConfig, total_steps: int, mesh: jax.sharding.Mesh) -> Trainable:
    """Everything about a run that needs no memory: no parameter is made.

    Raises:
      ValueError: if the model does not divide by the mesh, or the schedule does not fit the run.
    """
    update = make_optimizer(optimizer, total_steps)
    graph, abstract_params = split_model(make, constrain_to(mesh))
    placed = param_shardings(mesh, abstract_params)
    shapes = jax.eval_shape(lambda: init_state(init_params(make, np.uint32(0)), update))
    return Trainable(make, graph, update, abstract_like(shapes, state_shardings(mesh, update, shapes, placed)))


def fresh_state(trainable: Trainable, seed: int) -> TrainState:
    """Step 0, every array made where it belongs."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, trainable.abstract)
    make = jax.jit(lambda seed: init_state(init_params(trainable.make, seed), trainable.optimizer), out_shardings=shardings)
    return make(np.uint32(seed))


def forked_state(trainable: Trainable, params: dict) -> TrainState:
    """Step 0 from another run's parameters, with a fresh optimizer."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, trainable.abstract)
    return jax.jit(lambda params: init_state(params, trainable.optimizer), out_shardings=shardings)(params)


def train(
    folder: Path,
    *,
    trainable: Trainable,
    first_state: Callable[[], TrainState],
    config: TrainConfig,
    model: LlamaConfig,
    optimizer: OptimizerConfig,
    checkpoint: CheckpointConfig,
    pipeline: Pipeline,
    mesh: jax.sharding.Mesh,
    probing: Probing,
) -> TrainState:
    """Trains until the curriculum is done, resuming from the newest committed checkpoint in `folder`.

    Args:
      folder: the run folder.
      trainable: from `build`.
      first_state: makes the state of step 0; called only when there is nothing to resume.
      config, model, optimizer, checkpoint: what to do; see each class.
      pipeline: the batches.
      mesh: the devices.
      probing: the probes, and when they run.

    Raises:
      TrainingDiverged: at a loss that is not finite; no checkpoint of that step or later exists.
      Preempted: after SIGTERM, with the current step saved.
    """
    plan = stages(config.curriculum, config.tokens_per_step)
    last_step = plan[-1].first_step + plan[-1].num_steps
    with closing(Checkpoints(folder, checkpoint)) as checkpoints, ExitStack() as stack:
        saved = checkpoints.steps()
        batches = pipeline.dataset(plan, jax.process_index(), jax.process_count())[saved[-1] if saved else 0 :]
        batches = iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)))
        state = checkpoints.restore(saved[-1], trainable.abstract) if saved else first_state()
        step, seen = int(state.step), tokens_seen(jax.device_get(state.tokens_seen))
        writer = stack.enter_context(closing(MetricWriter(folder, keep_through=step if saved else -1, process=jax.process_index())))
        if not saved:
            writer.write(0, {"init/parameters_fingerprint": f"{int(jax.jit(fingerprint)(state.params)):08x}"})
        reporter = _Reporter(writer, config, model, optimizer, last_step, parameter_count(state.params))
        step_function = make_train_step(trainable.graph, trainable.optimizer, config.microbatches, config.loss_chunk_tokens)
        train_step = jax.jit(step_function, donate_argnums=0)
        preempted = stack.enter_context(_sigterm())
        stack.enter_context(reporter.progress(step, resumed=bool(saved)))

        while step < last_step:
            batch, batch_hash = reporter.timed_wait(batches)
            state, metrics = train_step(state, _place(batch, mesh))
            step, before, seen = step + 1, seen, seen + config.tokens_per_step
            reporter.dispatched(step, batch.tokens.shape[1], batch_hash, metrics)
            stopping = preempted(step)
            found = {}
            if probing.due(step, before, seen) or step == last_step:
                reporter.flush()
                found = probing.run(state.params, step, folder, writer, reporter.console)
                reporter.restart_clock()
            if step % checkpoint.every_steps == 0 or step == last_step or stopping:
                reporter.flush()  # raises before a state whose loss is not finite could be saved
                checkpoints.save(step, state, found)
            if stopping:
                checkpoints.wait()
                raise Preempted(f"SIGTERM: step {step} of {last_step} is saved in {folder}; run the same command to go on")
    return state


def _place(batch: Batch, mesh: jax.sharding.Mesh) -> Batch:
    sharding = batch_sharding(mesh)
    return Batch(*(jax.make_array_from_process_local_data(sharding, array) for array in batch))


@contextmanager
def _sigterm() -> Iterator[Callable[[int], bool]]:
    """Yields a question: at this step, is it time to save and go? All processes get the same answer."""
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: arrived.append(number))
    try:
        yield lambda step: bool(arrived)
    finally:
        signal.signal(signal.SIGTERM, before)


class _Reporter:
    """Reads each step's metrics once, one step late; keeps the clock; draws the progress line."""

    def __init__(
        self, writer: MetricWriter, config: TrainConfig, model: LlamaConfig, optimizer: OptimizerConfig, last_step: int, parameters: int
    ):
        self._writer, self._config, self._model, self._last_step, self._parameters = writer, config, model, last_step, parameters
        self._rate = learning_rate(optimizer, last_step)
        self._peak = config.peak_flops_per_device or PEAK_FLOPS.get(jax.devices()[0].device_kind)
        self._pending: tuple | None = None
        self._wait_seconds = 0.0
        self._clock = time.perf_counter()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=jax.process_index() != 0,
        )

    @property
    def console(self) -> Console:
        """Where to write without disturbing the bar."""
        return self._bar.console

    @contextmanager
    def progress(self, step: int, resumed: bool) -> Iterator[None]:
        """Shows the bar until the block ends; the last step's metrics are written then."""
        with self._bar:
            self._bar.console.print(
                f"{self._parameters:,} parameters on {jax.device_count()} {jax.devices()[0].device_kind} device(s), "
                f"{self._model.attention} attention, {'resuming after' if resumed else 'from'} step {step} of {self._last_step}"
                + ("" if self._peak else "; no MFU: set train.peak_flops_per_device for this device")
            )
            self._task = self._bar.add_task("training", total=self._last_step, completed=step, line="")
            yield
            self.flush()

    def timed_wait(self, batches: Iterator[HashedBatch]) -> HashedBatch:
        """The next batch; the time it took to come counts as waiting for data."""
        start = time.perf_counter()
        hashed = next(batches)
        self._wait_seconds = time.perf_counter() - start
        return hashed

    def dispatched(self, step: int, length: int, batch_hash: int, metrics: dict[str, jax.Array]) -> None:
        """Takes this step's metrics, still being computed, and reads the step before."""
        ready, self._pending = self._pending, (step, length, batch_hash, metrics, self._wait_seconds)
        if ready:
            self._write(*ready)

    def flush(self) -> None:
        """Reads the newest step's metrics now."""
        if self._pending:
            ready, self._pending = self._pending, None
            self._write(*ready)

    def restart_clock(self) -> None:
        """Leaves the time since the last step (a probe's) out of the next step's."""
        self._clock = time.perf_counter()

    def _write(self, step: int, length: int, batch_hash: int, metrics: dict, wait_seconds: float) -> None:
        fetched = jax.device_get(metrics)
        seen = tokens_seen(fetched.pop("tokens_seen"))
        scalars: dict[str, Any] = {name: float(value) for name, value in fetched.items()}
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        for name in ("train/loss_nats", "train/gradient_norm"):  # a finite loss with other gradients has spoilt the parameters already
            if not np.isfinite(scalars[name]):
                raise TrainingDiverged(
                    f"{name}={scalars[name]} at step {step}: stopped, nothing saved since the last checkpoint; "
                    "lower optimizer.peak_learning_rate or look at the batch"
                )
        tokens_per_second = self._config.tokens_per_step / seconds
        scalars |= {
            "train/learning_rate": float(jax.device_get(self._rate(step - 1))),
            "train/tokens_seen": seen,
            "train/context_length_tokens": length,
            "train/tokens_per_second": tokens_per_second,
            "train/step_seconds": seconds,
            "train/data_wait_share": min(wait_seconds / seconds, 1.0),
            "data/batch_hash": f"{batch_hash:016x}",
        }
        for convention, causal in (("causal", True), ("full", False)):
            per_device = tokens_per_second * train_flops_per_token(self._model, length, causal=causal) / jax.device_count()
            scalars[f"train/model_flops_per_second_per_device_{convention}_attention"] = per_device
            if self._peak:
                scalars[f"train/mfu_{convention}_attention"] = per_device / self._peak
        self._writer.write(step, scalars)
        self._bar.update(
            self._task, completed=step, line=f"context {length}  loss {scalars['train/loss_nats']:.3f}  {tokens_per_second:,.0f} tokens/s"
        )
