"""What every retrieval task is: a frozen value that writes prompts of an exact length, with the answer at an asked depth."""

import abc
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Prompts, Writer


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """The grid a task is asked on; a task's own fields come after these.

    Attributes:
      lengths: prompt lengths, tokens, increasing; empty: powers of two from 128 on, and the context length.
      num_depths: depths, evenly spaced from 0 to 1.
      samples: prompts at each length and depth.
      threshold: accuracy that counts as "can retrieve".
      seed: of the prompts.
    """

    name: ClassVar[str]

    lengths: tuple[int, ...] = ()
    num_depths: int = 5
    samples: int = 4
    threshold: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("num_depths", "samples"):
            if getattr(self, field) < 1:
                raise ValueError(f"probes.{self.name}.{field}={getattr(self, field)} must be at least 1")
        if any(b <= a for a, b in zip(self.lengths, self.lengths[1:], strict=False)) or any(length < 16 for length in self.lengths):
            raise ValueError(f"probes.{self.name}.lengths={self.lengths} must increase, from 16 tokens or more")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"probes.{self.name}.threshold={self.threshold} must lie in (0, 1]: it is an accuracy")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"probes.{self.name}.seed={self.seed} must lie in 0 .. 2**32 - 1")

    @abc.abstractmethod
    def prompts(self, writer: Writer, length: int, depths: np.ndarray) -> Prompts:
        """One prompt for each depth, a pure function of the task's fields, the writer, the length and the depths.

        Args:
          writer: in which ids, over which text.
          length: L, tokens that the model reads.
          depths: float64 `(N,)`, 0 to 1.

        Raises:
          ValueError: if the task's fixed parts do not fit the length.
        """

    def rng(self, length: int) -> np.random.Generator:
        """The random numbers of this task's prompts of one length."""
        return np.random.default_rng([self.seed, length, *self.name.encode()])


def default_lengths(length: int) -> tuple[int, ...]:
    """128, 256, 512, ... below `length`, and `length` itself."""
    return (*(2**power for power in range(7, 41) if 2**power < length), length)
