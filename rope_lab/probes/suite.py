"""The probes of a run, made from its config."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from rope_lab.data.pipeline import DataConfig, store_tokenizer
from rope_lab.data.retrieval import make_surface
from rope_lab.data.store import TokenStore, open_sources
from rope_lab.data.tokenizer import AbstractTokenizer
from rope_lab.probes.kv_by_distance import KVByDistanceConfig, KVByDistanceProbe
from rope_lab.probes.perplexity import PerplexityConfig, PerplexityProbe, held_out_windows
from rope_lab.probes.score import Scorer

Probe = Callable[[dict], tuple[dict[str, float], dict[str, np.ndarray]]]


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Attributes:
    every_steps: cadence inside training; they run at the last step in any case.
    length: context length probed, tokens; None: the last stage of the length curriculum.
    path: folder of held-out token stores; None: the sample's held-out books, in the run's tokenizer.
    perplexity, kv_by_distance: each probe's own fields.
    """

    every_steps: int = 1000
    length: int | None = None
    path: str | None = None
    perplexity: PerplexityConfig = field(default_factory=PerplexityConfig)
    kv_by_distance: KVByDistanceConfig = field(default_factory=KVByDistanceConfig)

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ValueError(f"probes.every_steps={self.every_steps} must be at least 1")
        if self.length is not None and self.length < 16:
            raise ValueError(f"probes.length={self.length} must be at least 16 tokens")


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


def make_probes(
    config: ProbeConfig, data: DataConfig, context_length: int, tokenizer: AbstractTokenizer, graph: nnx.GraphDef, sharding: NamedSharding
) -> dict[str, Probe]:
    """Every probe, ready to be handed parameters.

    Args:
      config: which and how.
      data: the run's data; the retrieval probe asks in the same surface.
      context_length: used where `config.length` is None, tokens.
      tokenizer: the run's.
      graph: the model's structure.
      sharding: of a batch's rows.
    """
    length = config.length or context_length
    windows, documents = held_out_windows(open_held_out(config, tokenizer), length, config.perplexity.windows_per_document)
    scorer = Scorer(graph, sharding)
    surface = make_surface(data.retrieval, tokenizer)
    return {
        "perplexity": PerplexityProbe(scorer, windows, documents),
        "kv_by_distance": KVByDistanceProbe(scorer, windows, surface, data.retrieval, config.kv_by_distance),
    }
