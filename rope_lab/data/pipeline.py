"""Training batches: each row a pure function of (seed, stage, global row index), on any number of hosts.

Grain decides *which* row of which source comes where (shuffled, repeated, mixed by weight, all random-access); one function then
reads a whole batch's tokens at once. There is no iterator state: the step number is the data position.

Shape letters: N rows of this process, T context length, W = T + 1.
"""

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import grain
import numpy as np

from rope_lab.data.retrieval import ANSWER, PROMPT, RetrievalConfig, Surface, make_surface, mixed_distances, plant, row_uniforms
from rope_lab.data.store import TokenStore, open_sources
from rope_lab.data.tokenizer import AbstractTokenizer, load_tokenizer

LLAMA_WEIGHTS = (
    ("common_crawl", 0.67),
    ("c4", 0.15),
    ("github", 0.045),
    ("wikipedia", 0.045),
    ("book", 0.045),
    ("arxiv", 0.025),
    ("stackexchange", 0.02),
)
"""RedPajama-1T's sources in LLaMA's proportions. Source: Touvron et al., "LLaMA", arXiv:2302.13971, Table 1."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on, and how it is laid in rows.

    Attributes:
      path: folder of token stores made by `rope-lab prepare`, one for each source; None: the sample shipped with the package.
      tokenizer: for the sample only; a prepared folder knows its own.
      weights: ((source, share of rows), ...); empty: every source in proportion to its tokens.
      attend_across_documents: attention may cross from one packed document to the next.
      restart_positions: positions start anew at 0 with each packed document.
      seed: of the shuffles and of the synthetic documents.
      retrieval: synthetic retrieval documents in the mixture.
    """

    path: str | None = None
    tokenizer: str = "bytes"
    weights: tuple[tuple[str, float], ...] = ()
    attend_across_documents: bool = False
    restart_positions: bool = False
    seed: int = 0
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)


class Batch(NamedTuple):
    """Rows for one step; NumPy on the host, or a pytree of device arrays of the same shapes.

    Attributes:
      tokens: int32 `(N, T)`, inputs.
      targets: int32 `(N, T)`, the token after each input.
      positions: int32 `(N, T)`, below T.
      segment_ids: int32 `(N, T)`: attention stays inside one id.
      weights: float32 `(N, T)`: weight of each target in the loss.
    """

    tokens: np.ndarray
    targets: np.ndarray
    positions: np.ndarray
    segment_ids: np.ndarray
    weights: np.ndarray


class HashedBatch(NamedTuple):
    """A batch with its fingerprint: the sum mod 2**64 of one hash for each row, so processes' halves add up to the whole."""

    batch: Batch
    hash: int


@dataclass(frozen=True)
class Stage:
    """Steps of one context length: `first_step .. first_step + num_steps - 1`, `rows` global rows of `length` tokens each."""

    index: int
    length: int
    rows: int
    first_step: int
    num_steps: int


def stages(curriculum: tuple[tuple[int, int], ...], tokens_per_step: int) -> tuple[Stage, ...]:
    """Lays a length curriculum out in steps, the tokens of a step held constant.

    Args:
      curriculum: ((context length in tokens, steps), ...).
      tokens_per_step: global; a multiple of every length.

    Raises:
      ValueError: if a length does not divide `tokens_per_step`, or nothing is to be done.
    """
    if not curriculum:
        raise ValueError("train.curriculum=() must name at least one (context length, steps) stage")
    result, first = [], 0
    for index, (length, steps) in enumerate(curriculum):
        if length < 2 or steps < 1:
            raise ValueError(f"train.curriculum stage {(length, steps)} must be (context length of at least 2, at least 1 step)")
        if tokens_per_step % length:
            raise ValueError(f"train.tokens_per_step={tokens_per_step} must be a multiple of the context length {length}")
        result.append(Stage(index, length, tokens_per_step // length, first, steps))
        first += steps
    return tuple(result)


class _RowNames(grain.sources.RandomAccessDataSource):
    """The names `(planted or not, source, row)` of one store's rows; no token is read here."""

    def __init__(self, planted: int, source: int, count: int):
        self._planted, self._source, self._count = planted, source, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> np.ndarray:
        return np.array((self._planted, self._source, row), np.int64)

    def __repr__(self) -> str:
        return f"_RowNames({self._planted}, {self._source}, {self._count})"


class Pipeline:
    """Opens the stores, and serves any step's rows.

    Args:
      config: what and how.
      stores: from `open_sources`; all with one tokenizer.
      tokenizer: the one the stores were made with.

    Raises:
      ValueError: if weights name an unknown source, or are no shares.
    """

    def __init__(self, config: DataConfig, stores: dict[str, TokenStore], tokenizer: AbstractTokenizer):
        self.config = config
        self.tokenizer = tokenizer
        self.surface: Surface | None = make_surface(config.retrieval, tokenizer) if config.retrieval.weight else None
        weights = dict(config.weights) or {name: float(store.info.num_tokens) for name, store in stores.items()}
        unknown = sorted(set(weights) - set(stores))
        if unknown:
            raise ValueError(f"data.weights names {', '.join(unknown)}, but the data folder has {', '.join(sorted(stores))}")
        if len(dict(config.weights)) < len(config.weights):
            raise ValueError(f"data.weights={config.weights} names a source twice")
        if any(weight < 0 for weight in weights.values()) or not 0 < sum(weights.values()) < np.inf:
            raise ValueError(f"data.weights={config.weights} must be non-negative shares with a positive sum")
        chosen = sorted(name for name, weight in weights.items() if weight > 0)
        self._names = chosen
        self._stores = [stores[name] for name in chosen]
        self._weights = [weights[name] for name in chosen]

    @property
    def vocab_size(self) -> int:
        """Ids that occur in batches: the tokenizer's, and the retrieval surface's beyond them."""
        return self.surface.vocab_size if self.surface else self.tokenizer.vocab_size

    @property
    def mixture(self) -> dict[str, tuple[TokenStore, float]]:
        """Each source's store and its share of rows that carry no records; the shares add up to 1."""
        total = sum(self._weights)
        return {name: (store, weight / total) for name, store, weight in zip(self._names, self._stores, self._weights, strict=True)}

    def check(self, stage: Stage) -> None:
        """Rejects a stage whose rows are too long for a source, or too short for a synthetic document.

        Raises:
          ValueError: naming the length and what it must fit.
        """
        for name, store in zip(self._names, self._stores, strict=True):
            if store.info.num_tokens <= stage.length:
                raise ValueError(
                    f"source {name!r} has {store.info.num_tokens} tokens, too few for one row of {stage.length} and its target"
                )
        if self.surface and self.surface.longest_distance(stage.length) < self.surface.shortest_distance:
            raise ValueError(
                f"context length {stage.length} is too short for a {self.config.retrieval.surface!r} record, its query and its answer"
            )

    def row_names(self, stage: Stage) -> grain.MapDataset:
        """The endless, random-access order of a stage: element r is `(planted or not, source, row of the source)`."""

        def rows(planted: int) -> grain.MapDataset:
            parts = []
            for source, store in enumerate(self._stores):
                count = (store.info.num_tokens - 1) // stage.length
                seed = _fold(self.config.seed, stage.index, planted, source)
                parts.append(grain.MapDataset.source(_RowNames(planted, source, count)).seed(seed).shuffle().repeat(None))
            return grain.MapDataset.mix(parts, weights=self._weights)

        share = self.config.retrieval.weight
        mixed = [(rows(planted), weight) for planted, weight in ((0, 1 - share), (1, share)) if weight > 0]
        return grain.MapDataset.mix([part for part, _ in mixed], weights=[weight for _, weight in mixed])

    def dataset(self, plan: tuple[Stage, ...], process: int = 0, num_processes: int = 1) -> grain.MapDataset:
        """The whole run: element s is the `HashedBatch` of global step s, this process's contiguous share of its rows."""

        def steps(stage: Stage) -> grain.MapDataset:
            if stage.rows % num_processes:
                raise ValueError(f"{stage.rows} rows a step at context length {stage.length} cannot be shared by {num_processes} processes")
            local = stage.rows // num_processes
            mine = np.arange(process * local, (process + 1) * local)
            batches = self.row_names(stage)[: stage.rows * stage.num_steps].batch(stage.rows)
            return batches.map_with_index(lambda step, names: self._assemble(stage, step * stage.rows + mine, names[mine]))

        return grain.MapDataset.concatenate([steps(stage) for stage in plan])

    def _assemble(self, stage: Stage, index: np.ndarray, names: np.ndarray) -> HashedBatch:
        planted, source, row = names.T
        N, W = len(names), stage.length + 1
        windows, segment_ids = np.empty((N, W), np.int32), np.empty((N, W), np.int32)
        for number, store in enumerate(self._stores):
            chosen = np.flatnonzero(source == number)
            if len(chosen):
                windows[chosen], segment_ids[chosen] = store.read(row[chosen] * stage.length, W)
        weights = np.ones((N, W), np.float32)
        chosen = np.flatnonzero(planted)
        if len(chosen):
            windows[chosen], weights[chosen] = self._plant(stage, index[chosen], windows[chosen])
            segment_ids[chosen] = 1  # a planted row is one document
        batch = self._lay_out(windows, segment_ids, weights)
        return HashedBatch(batch, _hash(index, batch))

    def _plant(self, stage: Stage, index: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        retrieval, surface = self.config.retrieval, self.surface
        assert surface is not None
        Q, K = retrieval.max_records, retrieval.num_keys
        uniforms = row_uniforms(_fold(self.config.seed, stage.index), index, 2 * Q + 2 * Q + K)
        shortest, longest = surface.shortest_distance, surface.longest_distance(stage.length)
        distances = mixed_distances(uniforms[:, : 2 * Q].reshape(-1, Q, 2), shortest, longest)
        result = plant(windows, distances, uniforms[:, 2 * Q :], surface)
        weight_of = np.ones(3, np.float32)
        weight_of[PROMPT], weight_of[ANSWER] = 0.0, retrieval.answer_loss_weight
        return result.tokens, weight_of[result.kinds]

    def _lay_out(self, windows: np.ndarray, segment_ids: np.ndarray, weights: np.ndarray) -> Batch:
        N, T = len(windows), windows.shape[1] - 1
        positions = np.broadcast_to(np.arange(T, dtype=np.int32), (N, T))
        segment_ids = segment_ids[:, :-1]
        if self.config.restart_positions:
            starts = np.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
            positions = positions - np.maximum.accumulate(np.where(starts, positions, 0), axis=1)
        if self.config.attend_across_documents:
            segment_ids = np.ones_like(segment_ids)
        return Batch(windows[:, :-1], windows[:, 1:], np.ascontiguousarray(positions), segment_ids, weights[:, 1:])


def _fold(*numbers: int) -> int:
    """One 32-bit seed from several small numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _hash(index: np.ndarray, batch: Batch) -> int:
    total = 0
    for row, *arrays in zip(index.tolist(), *batch, strict=True):
        digest = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        total += int.from_bytes(digest.digest(), "little")
    return total % 2**64


def open_pipeline(config: DataConfig) -> Pipeline:
    """Opens the configured stores, preparing the shipped sample on first use.

    Raises:
      ValueError: if the folder holds no stores, or stores of different tokenizers.
    """
    if config.path is None:
        from rope_lab.data.prepare import prepare_sample  # datatrove is heavy, and needed only here

        stores = open_sources(prepare_sample(config.tokenizer) / "train")
    else:
        stores = open_sources(config.path)
    return Pipeline(config, stores, store_tokenizer(stores))


def store_tokenizer(stores: dict[str, TokenStore]) -> AbstractTokenizer:
    """The one tokenizer that all these stores were made with.

    Raises:
      ValueError: if they differ, or the tokenizer found under that name is no longer the one that was used.
    """
    names = {(store.info.tokenizer, store.info.tokenizer_fingerprint) for store in stores.values()}
    if len(names) > 1:
        raise ValueError(
            f"the stores were made with different tokenizers: {', '.join(sorted(name for name, _ in names))}; prepare them anew"
        )
    name, fingerprint = next(iter(names))
    tokenizer = load_tokenizer(name)
    if tokenizer.fingerprint != fingerprint:
        raise ValueError(
            f"tokenizer {name!r} has changed since the stores were made with it; prepare them anew, or bring the old file back"
        )
    return tokenizer
