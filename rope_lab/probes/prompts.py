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

_BEFORE = "."  # stands before a text that is encoded as a continuation


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

    def text(self, text: str) -> np.ndarray:
        """int32 ids of a text as it is tokenized in the middle of another: no dummy space in front, no separator."""
        before, joint = self.tokenizer.encode(_BEFORE), self.tokenizer.encode(_BEFORE + text)
        if np.array_equal(joint[: len(before)], before):
            return joint[len(before) :]
        return self.tokenizer.encode(text)  # the two merge in this tokenizer

    def alphabet(self, candidates: Sequence[str]) -> np.ndarray:
        """Those candidates that come out in one token count, the commonest, so that no answer's length tells anything.

        Returns:
          int32 `(V, A)`, each once.

        Raises:
          ValueError: if fewer than two do.
        """
        ids = [self.text(candidate) for candidate in candidates]
        counts = np.bincount([len(row) for row in ids])
        length = int(counts.argmax())
        if counts[length] < 2:
            raise ValueError(f"tokenizer {self.tokenizer.name!r} gives no two of {candidates[0]!r}, ... one token count; use another one")
        return np.unique(np.stack([row for row in ids if len(row) == length]), axis=0)

    def haystack(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """int32 `(count,)`: consecutive held-out text from a random place."""
        return self.from_place(int(rng.integers(len(self._stream))), count)

    def from_place(self, start: int, count: int) -> np.ndarray:
        """int32 `(count,)`: the held-out text from this token on."""
        return np.take(self._stream, np.arange(start, start + count), mode="wrap")


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
      length: L; the row has one token more.
      filler: at least `length` tokens; as many as fit are used, in order.
      inserts: what is put into the filler.
      depths: of each, 0 to 1, not decreasing; an insert stands after `round(depth * filler tokens used)` of them.
      question, answer: close the row.

    Returns:
      int32 `(length + 1,)`, and the first token of each insert, int32 `(len(inserts),)`.

    Raises:
      ValueError: if it does not fit.
    """
    fixed = 1 + sum(map(len, inserts)) + len(question) + len(answer)
    room = length + 1 - fixed
    if room < 0:
        raise ValueError(f"a prompt of {length=} tokens is too short: needles, question and answer take {fixed - 1}; ask for longer ones")
    assert len(filler) >= room
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
