"""What every retrieval task is: a frozen value that writes prompts of an exact length, with the answer at an asked depth."""

import abc
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from rope_lab.probes.prompts import Prompts, Writer, occurrences

_TRIES = 100


class Prompt(NamedTuple):
    """One of the `Prompts`, whose attributes these are: int32 `(L + 1,)`, `(L + 1,)`, `(D, A)`, and two indices."""

    tokens: np.ndarray
    control: np.ndarray
    distractors: np.ndarray
    needle: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """The grid a task is asked on; a task's own fields come after these.

    Attributes:
      lengths: prompt lengths, tokens, increasing; empty: powers of two from 128 on, and the context length.
      samples: prompts at each length and depth.
      threshold: accuracy that counts as "can retrieve".
      seed: of the prompts.
    """

    name: ClassVar[str]
    copies: ClassVar[int] = 1
    """How often the answer stands in a prompt before it is asked for; in the control it never does."""

    lengths: tuple[int, ...] = ()
    samples: int = 4
    threshold: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_positive("samples")
        if any(b <= a for a, b in zip(self.lengths, self.lengths[1:], strict=False)) or any(length < 16 for length in self.lengths):
            raise ValueError(f"probes.{self.name}.lengths={self.lengths} must increase, from 16 tokens or more")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"probes.{self.name}.threshold={self.threshold} must lie in (0, 1]: it is an accuracy")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"probes.{self.name}.seed={self.seed} must lie in 0 .. 2**32 - 1")

    def check_positive(self, field: str) -> None:
        """Refuses a field below 1.

        Raises:
          ValueError: naming it.
        """
        if getattr(self, field) < 1:
            raise ValueError(f"probes.{self.name}.{field}={getattr(self, field)} must be at least 1")

    @property
    @abc.abstractmethod
    def depths(self) -> np.ndarray:
        """float64, at which it is asked: 0 is the beginning, 1 the end."""

    @abc.abstractmethod
    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        """One prompt; of one length, all have answers and distractors of one shape.

        Raises:
          ValueError: if the task's fixed parts do not fit the length.
        """

    @abc.abstractmethod
    def chance(self, writer: Writer) -> float:
        """Accuracy of guessing among the task's possible answers, without a look at the context."""

    def measures(self, predicted: np.ndarray, answers: np.ndarray) -> dict[str, np.ndarray]:
        """What is scored besides exact match, by name.

        Args:
          predicted, answers: int32 `(N, A)`.

        Returns:
          float64 `(N,)` each.
        """
        return {}

    def prompts(self, writer: Writer, length: int, depths: np.ndarray) -> Prompts:
        """One prompt for each depth, a pure function of the task's fields, the writer, the length and the depths.

        Args:
          writer: in which ids, over which text.
          length: L, tokens that the model reads.
          depths: float64 `(N,)`, 0 to 1.

        Raises:
          ValueError: if the task's fixed parts do not fit the length, or the text around holds the answer, whichever is drawn.
        """
        made = [self._without_leak(writer, length, number, depth) for number, depth in enumerate(depths.tolist())]
        tokens, controls, distractors, needles = zip(*made, strict=True)
        return Prompts(
            np.stack(tokens),
            np.stack(controls),
            distractors[0].shape[1],
            np.stack(distractors),
            depths,
            np.array(needles, np.int32),
            self.chance(writer),
        )

    def _without_leak(self, writer: Writer, length: int, number: int, depth: float) -> Prompt:
        rng = np.random.default_rng([self.seed, length, number, *self.name.encode()])
        for _ in range(_TRIES):
            prompt = self.prompt(writer, rng, length, depth)
            before = len(prompt.tokens) - prompt.distractors.shape[1]
            answer = prompt.tokens[before:]
            if len(occurrences(prompt.tokens[:before], answer)) == self.copies and not len(occurrences(prompt.control[:before], answer)):
                return prompt
        raise ValueError(f"probes.{self.name}: the held-out text repeats every answer tried at {length=}; give probes.path other documents")

    def room(self, length: int, taken: int) -> int:
        """Tokens left for text in a prompt whose needles, question and answer take `taken`.

        Raises:
          ValueError: if they take more than there are.
        """
        if taken > length:
            raise ValueError(
                f"probes.{self.name}: a prompt of {length=} tokens is too short, its needles, question and answer take {taken}; "
                f"ask for probes.{self.name}.lengths of so many or more"
            )
        return length - taken


@dataclass(frozen=True, kw_only=True)
class DepthTask(Task):
    """A task whose needle may stand anywhere.

    Attributes:
      num_depths: depths, evenly spaced from 0 to 1; a single one is the middle.
    """

    num_depths: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("num_depths")

    @property
    def depths(self) -> np.ndarray:
        return np.linspace(0, 1, self.num_depths) if self.num_depths > 1 else np.array([0.5])


def default_lengths(length: int) -> tuple[int, ...]:
    """128, 256, 512, ... below `length`, and `length` itself."""
    return (*(2**power for power in range(7, 41) if 2**power < length), length)
