"""The probes of a run, made from its config."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from rope_lab.data.pipeline import DataConfig, store_tokenizer
from rope_lab.data.retrieval import make_surface
from rope_lab.data.store import TokenStore, open_sources
from rope_lab.data.tokenizer import AbstractTokenizer
from rope_lab.probes.context_gain import ContextGainConfig, ContextGainProbe
from rope_lab.probes.kv_by_distance import KVByDistanceConfig, KVByDistanceProbe
from rope_lab.probes.perplexity import PerplexityConfig, PerplexityProbe, held_out_windows
from rope_lab.probes.prompts import Writer, held_out_stream
from rope_lab.probes.retrieval import RetrievalProbe
from rope_lab.probes.score import Scorer
from rope_lab.probes.similarity_gap import SimilarityGapConfig, SimilarityGapProbe
from rope_lab.probes.sliding_perplexity import SlidingPerplexityConfig, SlidingPerplexityProbe
from rope_lab.probes.tasks import TASKS, FirstSentence, LongEvalLines, MultikeyNeedle, Needle, Passkey, Task, VariableTracking

Probe = Callable[[dict], tuple[dict[str, float], dict[str, np.ndarray]]]


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Which probes run, when, and on what; each probe's own fields are a section under its name.

    Attributes:
      names: the probes that run inside training, and by `rope-lab probe` unless it names others.
      every_steps: cadence inside training, steps; they run at the last step in any case.
      every_tokens: cadence in tokens trained on; where set, it rules, and `every_steps` is not looked at.
      length: context length probed, tokens; None: the last stage of the length curriculum.
      path: folder of held-out token stores; None: the sample's held-out books, in the run's tokenizer.
    """

    names: tuple[str, ...] = ("perplexity", "kv_by_distance")
    every_steps: int = 1000
    every_tokens: int | None = None
    length: int | None = None
    path: str | None = None
    perplexity: PerplexityConfig = field(default_factory=PerplexityConfig)
    sliding_perplexity: SlidingPerplexityConfig = field(default_factory=SlidingPerplexityConfig)
    context_gain: ContextGainConfig = field(default_factory=ContextGainConfig)
    kv_by_distance: KVByDistanceConfig = field(default_factory=KVByDistanceConfig)
    passkey: Passkey = field(default_factory=Passkey)
    needle: Needle = field(default_factory=Needle)
    multikey_needle: MultikeyNeedle = field(default_factory=MultikeyNeedle)
    longeval_lines: LongEvalLines = field(default_factory=LongEvalLines)
    variable_tracking: VariableTracking = field(default_factory=VariableTracking)
    first_sentence: FirstSentence = field(default_factory=FirstSentence)
    similarity_gap: SimilarityGapConfig = field(default_factory=SimilarityGapConfig)

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ValueError(f"probes.every_steps={self.every_steps} must be at least 1")
        if self.every_tokens is not None and self.every_tokens < 1:
            raise ValueError(f"probes.every_tokens={self.every_tokens} must be at least 1")
        if self.length is not None and self.length < 16:
            raise ValueError(f"probes.length={self.length} must be at least 16 tokens")
        unknown = [name for name in self.names if name not in PROBES]
        if unknown or len(set(self.names)) < len(self.names):
            raise ValueError(f"probes.names={self.names} must name some of {', '.join(PROBES)}, each once")


def open_held_out(config: ProbeConfig, tokenizer: AbstractTokenizer) -> dict[str, TokenStore]:
    """The held-out stores, in the tokenizer that the model reads.

    Raises:
      ValueError: if they were made with another one.
    """
    if config.path is None:
        from rope_lab.data.prepare import prepare_sample  # datatrove is heavy, and needed only here

        return open_sources(prepare_sample(tokenizer.name) / "eval")
    stores = open_sources(config.path)
    theirs = store_tokenizer(stores)
    if theirs.fingerprint != tokenizer.fingerprint:
        raise ValueError(
            f"probes.path={config.path!r} was prepared with tokenizer {theirs.name!r}, the training data with {tokenizer.name!r}"
        )
    return stores


class Bench:
    """What probes are made from; each part is opened when the first probe asks for it.

    Args:
      config: which probes and how.
      data: the run's data; key-value records are asked for in its surface.
      context_length: the curriculum's last, used where `config.length` is None, tokens.
      tokenizer: the run's.
      graph: the model's structure.
      sharding: of a batch's rows.
    """

    def __init__(
        self,
        config: ProbeConfig,
        data: DataConfig,
        context_length: int,
        tokenizer: AbstractTokenizer,
        graph: nnx.GraphDef,
        sharding: NamedSharding,
    ):
        self.config, self.data, self.tokenizer, self.graph, self.sharding = config, data, tokenizer, graph, sharding
        self.length = config.length or context_length

    @functools.cached_property
    def scorer(self) -> Scorer:
        """Runs the model."""
        return Scorer(self.graph, self.sharding)

    @functools.cached_property
    def stores(self) -> dict[str, TokenStore]:
        """The held-out text."""
        return open_held_out(self.config, self.tokenizer)

    @functools.cached_property
    def windows(self) -> tuple[np.ndarray, np.ndarray]:
        """Held-out rows of the probed length, and each one's document."""
        return held_out_windows(self.stores, self.length, self.config.perplexity.windows_per_document)

    @functools.cached_property
    def writer(self) -> Writer:
        """Writes prompts over the held-out text."""
        return Writer(self.tokenizer, held_out_stream(self.stores))


def _perplexity(bench: Bench) -> Probe:
    return PerplexityProbe(bench.scorer, *bench.windows)


def _sliding_perplexity(bench: Bench) -> Probe:
    return SlidingPerplexityProbe(bench.scorer, bench.stores, bench.length, bench.config.sliding_perplexity)


def _context_gain(bench: Bench) -> Probe:
    return ContextGainProbe(bench.scorer, bench.stores, bench.length, bench.config.context_gain)


def _kv_by_distance(bench: Bench) -> Probe:
    retrieval = bench.data.retrieval
    surface = make_surface(retrieval, bench.tokenizer)
    return KVByDistanceProbe(bench.scorer, bench.windows[0], surface, retrieval, bench.config.kv_by_distance)


def _similarity_gap(bench: Bench) -> Probe:
    retrieval = bench.data.retrieval
    surface = make_surface(retrieval, bench.tokenizer)
    return SimilarityGapProbe(bench.graph, bench.sharding, bench.windows[0], surface, retrieval, bench.config.similarity_gap)


def _task(name: str, bench: Bench) -> Probe:
    task: Task = getattr(bench.config, name)
    return RetrievalProbe(bench.scorer, task, bench.writer, bench.length)


PROBES: dict[str, Callable[[Bench], Probe]] = {
    "perplexity": _perplexity,
    "sliding_perplexity": _sliding_perplexity,
    "context_gain": _context_gain,
    "kv_by_distance": _kv_by_distance,
    **{name: functools.partial(_task, name) for name in TASKS},
    "similarity_gap": _similarity_gap,
}
"""Every probe by name, which is also the name of its section in the config."""

RETRIEVAL = ("kv_by_distance", *TASKS)
"""Those that report `length_scalars`."""


def make_probes(bench: Bench, names: tuple[str, ...]) -> dict[str, Probe]:
    """The named probes, ready to be handed parameters.

    Raises:
      ValueError: if one does not fit the length or the data, naming it.
    """
    return {name: PROBES[name](bench) for name in names}
