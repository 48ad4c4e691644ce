"""Prompts in token space: exact total length, the needle at an asked depth, a fixed answer length, whatever the tokenizer.

A prompt is a row of L + 1 tokens, of which the model reads exactly the first L; the last A are the answer, so its last token is a
target only. It opens with one separator, as training documents do, and holds no other.

Shape letters: N prompts, L tokens that the model reads, A answer tokens, D distractors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rope_lab.data.store import TokenStore
from rope_lab.data.tokenizer import AbstractTokenizer

_BEFORE = (".", "x")  # one of them stands before a text that is encoded as a continuation


class Prompts(NamedTuple):
    """Prompts of one length.

    Attributes:
      tokens: int32 `(N, L + 1)`; the answer is the last A.
      control: the same rows with what answers them (the needles) replaced by text like the haystack's.
      answer_length: A.
      distractors: int32 `(N, D, A)`: answers that would be wrong, D at least 1, each different from the right one.
      depths: float64 `(N,)`, asked: 0 is the haystack's beginning, 1 its end.
      needles: int32 `(N, 2)`: first token of the needle that holds the answer, and one past its last.
      chance: accuracy of guessing among the task's possible answers.
    """

    tokens: np.ndarray
    control: np.ndarray
    answer_length: int
    distractors: np.ndarray
    depths: np.ndarray
    needles: np.ndarray
    chance: float

    @property
    def answers(self) -> np.ndarray:
        """int32 `(N, A)`."""
        return self.tokens[:, -self.answer_length :]

    @property
    def distances(self) -> np.ndarray:
        """int32 `(N,)`: tokens from the needle's last to the query's last, the input that predicts the answer."""
        return self.tokens.shape[1] - 1 - self.answer_length - (self.needles[:, 1] - 1)


class Writer:
    """Writes in one tokenizer's ids, over held-out text.

    Args:
      tokenizer: the model's.
      stream: int32 token ids of real text, end to end without separators; read round and round where it is too short.
    """

    def __init__(self, tokenizer: AbstractTokenizer, stream: np.ndarray):
        if len(stream) < 2:
            raise ValueError(f"the haystack has {len(stream)} tokens; give probes.path longer documents")
        self.tokenizer = tokenizer
        self.separator = tokenizer.separator
        self._stream = stream
        self._texts: dict[str, np.ndarray] = {}
        self._alphabets: dict[tuple[str, ...], np.ndarray] = {}

    @property
    def num_places(self) -> int:
        """Tokens of the held-out text, each of which a haystack may begin with."""
        return len(self._stream)

    def text(self, text: str) -> np.ndarray:
        """int32 ids of a text as it is tokenized in the middle of another: no dummy space in front, no separator."""
        if text not in self._texts:
            (self._texts[text],) = self._continuations([text])
        return self._texts[text]

    def alphabet(self, candidates: tuple[str, ...]) -> np.ndarray:
        """Those candidates that come out in one token count, the commonest, so that no answer's length tells anything.

        Returns:
          int32 `(V, A)`, each once.

        Raises:
          ValueError: if fewer than two do.
        """
        if candidates not in self._alphabets:
            ids = self._continuations(candidates)
            length = int(np.bincount([len(row) for row in ids]).argmax())
            distinct = np.unique(np.stack([row for row in ids if len(row) == length]), axis=0)
            if len(distinct) < 2:
                raise ValueError(
                    f"tokenizer {self.tokenizer.name!r} tells no two of {candidates[0]!r}, ... apart in one token count; use another one"
                )
            self._alphabets[candidates] = distinct
        return self._alphabets[candidates]

    def _continuations(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text behind the first opening that it does not merge with; alone where it merges with all."""
        ids = self.tokenizer.encode_batch(texts)
        for before in reversed(_BEFORE):
            opening = self.tokenizer.encode(before)
            for number, joint in enumerate(self.tokenizer.encode_batch([before + text for text in texts])):
                if np.array_equal(joint[: len(opening)], opening):
                    ids[number] = joint[len(opening) :]
        return ids

    def haystack(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """int32 `(count,)`: consecutive held-out text from a random place."""
        return self.from_place(int(rng.integers(len(self._stream))), count)

    def from_place(self, start: int, count: int, without: int = 0) -> np.ndarray:
        """int32 `(count,)`: the held-out text from this token on; coming round, it leaves out the `without` tokens before this one."""
        return np.take(self._stream, start + np.arange(count) % (len(self._stream) - without), mode="wrap")


def occurrences(tokens: np.ndarray, pattern: np.ndarray) -> np.ndarray:
    """Where `pattern` stands in `tokens`: the index of each copy's first token, increasing."""
    starts = np.flatnonzero(tokens[: max(0, len(tokens) - len(pattern) + 1)] == pattern[0])
    for offset, token in enumerate(pattern[1:], start=1):
        starts = starts[tokens[starts + offset] == token]
    return starts


def held_out_stream(stores: dict[str, TokenStore], most: int = 2**21) -> np.ndarray:
    """The held-out documents end to end without their separators; int32, at most `most` tokens."""
    parts = []
    for store in stores.values():
        tokens = store.read(np.zeros(1, np.int64), min(store.info.num_tokens, most))[0][0]
        parts.append(tokens[tokens != store.info.separator])
    return np.concatenate(parts)[:most]


def lay_out(
    separator: int,
    length: int,
    filler: np.ndarray,
    inserts: Sequence[np.ndarray],
    depths: Sequence[float],
    question: np.ndarray,
    answer: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """One row: the separator, filler with the inserts in it, the question, the answer.

    Args:
      separator: opens the row.
      length: L; the row has one token more, and everything must fit.
      filler: as many tokens as fit are used, in order.
      inserts: what is put into the filler.
      depths: of each, 0 to 1, not decreasing; an insert stands after `round(depth * filler tokens used)` of them.
      question, answer: close the row.

    Returns:
      int32 `(length + 1,)`, and the first token of each insert, int32 `(len(inserts),)`.
    """
    room = length - sum(map(len, inserts)) - len(question) - len(answer)
    assert 0 <= room <= len(filler)
    assert list(depths) == sorted(depths)
    cuts = [round(depth * room) for depth in depths]
    parts, starts, used, place = [np.array([separator])], [], 0, 1
    for cut, insert in zip(cuts, inserts, strict=True):
        parts += [filler[used:cut], insert]
        place += cut - used
        starts.append(place)
        place, used = place + len(insert), cut
    row = np.concatenate([*parts, filler[used:room], question, answer]).astype(np.int32)
    assert row.shape == (length + 1,)
    return row, np.array(starts, np.int32)
