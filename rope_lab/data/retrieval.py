"""Synthetic retrieval documents: key-value records strewn into real text, each asked for once, at a controlled distance.

A record states that a key has a value; later a query names the key, and the value is the answer. How keys, values and records are
written is a *surface*: three arrays of token ids. Everything below works on those arrays, a whole batch at a time.

Shape letters: N rows, W tokens in a row (one more than the model's T), Q slots for a question in a row.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rope_lab.data.tokenizer import AbstractTokenizer

TEXT, PROMPT, ANSWER = 0, 1, 2  # what a token of a planted row is; PROMPT covers records and queries


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
    """Synthetic retrieval in the training mixture.

    Attributes:
      weight: share of rows that carry records, 0 to 1.
      surface: how records are written: a key of `SURFACES`.
      num_keys, num_values: size of the two alphabets; guessing scores 1 / num_values.
      max_records: slots for a record and its question in a row; those that find no free room stay text.
      answer_loss_weight: weight of an answer token in the loss; text weighs 1, records and queries (unpredictable) 0.
    """

    weight: float = 0.0
    surface: str = "token"
    num_keys: int = 32
    num_values: int = 16
    max_records: int = 24
    answer_loss_weight: float = 8.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"data.retrieval.weight={self.weight} must lie in 0 .. 1: it is a share of rows")
        if self.surface not in SURFACES:
            raise ValueError(f"data.retrieval.surface={self.surface!r} must be one of {', '.join(SURFACES)}")
        for name in ("num_keys", "num_values", "max_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.retrieval.{name}={getattr(self, name)} must be at least 1")
        if self.max_records > self.num_keys:
            raise ValueError(
                f"data.retrieval.max_records={self.max_records} must not exceed num_keys={self.num_keys}: a key is used once a row"
            )


class Surface(NamedTuple):
    """How retrieval is written, in token ids (int32).

    Attributes:
      records: shape `(num_keys, num_values, record length)`.
      queries: shape `(num_keys, query length)`.
      answers: shape `(num_values, answer length)`.
      vocab_size: ids needed, the tokenizer's own included.
    """

    records: np.ndarray
    queries: np.ndarray
    answers: np.ndarray
    vocab_size: int

    @property
    def shortest_distance(self) -> int:
        """Tokens from a record's last to its query's last when one follows the other at once."""
        return self.queries.shape[-1]

    def longest_distance(self, length: int) -> int:
        """The same when the record opens a row of `length` model inputs and the answer's last token is its last target."""
        return length + 1 - self.records.shape[-1] - self.answers.shape[-1]


def _token_surface(tokenizer: AbstractTokenizer, num_keys: int, num_values: int) -> Surface:
    """One reserved id for each (key, value) record, each key and each value: retrieval in a single attention step."""
    first = tokenizer.vocab_size
    records = first + np.arange(num_keys * num_values).reshape(num_keys, num_values, 1)
    queries = first + num_keys * num_values + np.arange(num_keys)[:, None]
    answers = first + num_keys * num_values + num_keys + np.arange(num_values)[:, None]
    return _surface(records, queries, answers, first + num_keys * num_values + num_keys + num_values)


def _pair_surface(tokenizer: AbstractTokenizer, num_keys: int, num_values: int) -> Surface:
    """One reserved id for each key and each value; a record is the key and then the value: needs an induction circuit."""
    keys = tokenizer.vocab_size + np.arange(num_keys)[:, None]
    values = tokenizer.vocab_size + num_keys + np.arange(num_values)[:, None]
    records = np.stack(np.broadcast_arrays(keys, values.T), axis=-1)
    return _surface(records, keys, values, tokenizer.vocab_size + num_keys + num_values)


def _text_surface(tokenizer: AbstractTokenizer, num_keys: int, num_values: int) -> Surface:
    """Plain text in the tokenizer's own ids: `[key 07 is 03]` and later `[key 07 is` -> ` 03`."""

    def encode(kind: str, texts: list[str]) -> np.ndarray:
        ids = [tokenizer.encode(text) for text in texts]
        if len({len(row) for row in ids}) != 1:
            raise ValueError(
                f"data.retrieval.surface='text' needs every {kind} to have one token count, but tokenizer {tokenizer.name!r} gives "
                f"{sorted({len(row) for row in ids})}; use surface='pair' or 'token'"
            )
        return np.stack(ids)

    queries = encode("query", [f"[key {key:02d} is" for key in range(num_keys)])
    answers = encode("answer", [f" {value:02d}" for value in range(num_values)])
    close = encode("record's end", ["]"])[0]
    records = np.stack([[np.concatenate([query, answer, close]) for answer in answers] for query in queries])
    return _surface(records, queries, answers, tokenizer.vocab_size)


def _surface(records: np.ndarray, queries: np.ndarray, answers: np.ndarray, vocab_size: int) -> Surface:
    return Surface(records.astype(np.int32), queries.astype(np.int32), answers.astype(np.int32), int(vocab_size))


SURFACES = {"token": _token_surface, "pair": _pair_surface, "text": _text_surface}


def make_surface(config: RetrievalConfig, tokenizer: AbstractTokenizer) -> Surface:
    """The configured surface over a tokenizer; reserved ids start right after the tokenizer's vocabulary.

    Raises:
      ValueError: if the "text" surface does not come out in equal token counts.
    """
    return SURFACES[config.surface](tokenizer, config.num_keys, config.num_values)


class Planted(NamedTuple):
    """Rows with records in them.

    Attributes:
      tokens: int32 `(N, W)`.
      kinds: uint8 `(N, W)`: `TEXT`, `PROMPT` or `ANSWER`.
      query_end: int32 `(N, Q)`: index of each query's last token, the input that predicts the answer; -1 where a slot found no room.
      distances: int32 `(N, Q)`: tokens from the record's last token to the query's last.
      values: int32 `(N, Q)`: which value is the answer.
    """

    tokens: np.ndarray
    kinds: np.ndarray
    query_end: np.ndarray
    distances: np.ndarray
    values: np.ndarray


def row_uniforms(seed: int, rows: np.ndarray, count: int) -> np.ndarray:
    """`count` uniforms in [0, 1) for each row, a pure function of (seed, row); float64, shape `(len(rows), count)`."""
    return np.stack([np.random.Generator(np.random.Philox(key=[seed, row])).random(count) for row in rows.tolist()])


def mixed_distances(uniforms: np.ndarray, shortest: int, longest: int) -> np.ndarray:
    """Distances half log-uniform, half uniform in `shortest .. longest`; near ones come often, far ones never rarely.

    Args:
      uniforms: shape `(..., 2)`: the first picks the law, the second the distance.
    """
    law, u = uniforms[..., 0], uniforms[..., 1]
    log_uniform = shortest * ((longest + 1) / shortest) ** u
    uniform = shortest + u * (longest + 1 - shortest)
    return np.minimum(np.where(law < 0.5, log_uniform, uniform).astype(np.int32), longest)


def plant(windows: np.ndarray, distances: np.ndarray, uniforms: np.ndarray, surface: Surface) -> Planted:
    """Strews one record and one question a slot into rows of text, which flows on around them.

    Slots are served in order; one whose tokens would touch an earlier one's is dropped, so distances are exact for those that stand.
    A key is used at most once a row: no question has two answers, and none is asked twice.

    Args:
      windows: int32 `(N, W)` text; a row keeps its first tokens, as many as remain free.
      distances: int32 `(N, Q)`, each in `surface.shortest_distance .. surface.longest_distance(T)`.
      uniforms: float64 `(N, 2 Q + num_keys)` in [0, 1): places, values and keys.
      surface: how to write them.
    """
    N, W = windows.shape
    Q = distances.shape[1]
    K, V, record_length = surface.records.shape
    query_length, answer_length = surface.queries.shape[1], surface.answers.shape[1]
    assert Q <= K
    assert uniforms.shape == (N, 2 * Q + K)
    keys = np.argsort(uniforms[:, 2 * Q :], axis=1)[:, :Q]
    values = (uniforms[:, Q : 2 * Q] * V).astype(np.int32)
    earliest = distances + record_length - 1
    room = W - answer_length - earliest
    assert (room > 0).all(), "a distance that does not fit the row"
    query_end = earliest + (uniforms[:, :Q] * room).astype(np.int32)

    tokens = np.empty((N, W), np.int32)
    kinds = np.full((N, W), TEXT, np.uint8)
    spans = np.concatenate([np.arange(record_length), np.arange(query_length), np.arange(answer_length)])
    span_kinds = np.repeat([PROMPT, PROMPT, ANSWER], [record_length, query_length, answer_length]).astype(np.uint8)
    for slot in range(Q):
        end, key, value = query_end[:, slot], keys[:, slot], values[:, slot]
        starts = [end - distances[:, slot] - record_length + 1, end - query_length + 1, end + 1]
        where = np.repeat(np.stack(starts, axis=1), [record_length, query_length, answer_length], axis=1) + spans
        free = (np.take_along_axis(kinds, where, axis=1) == TEXT).all(axis=1)
        rows = np.flatnonzero(free)
        content = np.concatenate([surface.records[key, value], surface.queries[key], surface.answers[value]], axis=1)
        tokens[rows[:, None], where[rows]] = content[rows]
        kinds[rows[:, None], where[rows]] = span_kinds
        query_end[~free, slot] = -1
    text_index = np.maximum(np.cumsum(kinds == TEXT, axis=1) - 1, 0)
    tokens = np.where(kinds == TEXT, np.take_along_axis(windows, text_index, axis=1), tokens)
    return Planted(tokens, kinds, query_end, distances, values)
