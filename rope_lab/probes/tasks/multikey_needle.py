"""A needle among needles: other keys with other codes stand in the same haystack."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Writer, lay_out
from rope_lab.probes.tasks.needle import CODES, NAMES, questions
from rope_lab.probes.tasks.task import DepthTask, Prompt


@dataclass(frozen=True, kw_only=True)
class MultikeyNeedle(DepthTask):
    """The `needle` task with further needles at random depths, each with another name and another code: the distractors.

    Chance is 1 / 1000, or a little more where the tokenizer gives some numbers another token count; who copies the code of any needle at
    random scores 1 / (1 + needles besides).

    Attributes:
      num_distractors: other needles; as many as fit, at least one.

    Source: multi-key NIAH of Hsieh et al., "RULER", arXiv:2404.06654, section 3; three distractors are its first setting.
    """

    name: ClassVar[str] = "multikey_needle"

    num_distractors: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_distractors < len(NAMES):
            raise ValueError(
                f"probes.{self.name}.num_distractors={self.num_distractors} must lie in 1 .. {len(NAMES) - 1}: each has its own name"
            )

    def chance(self, writer: Writer) -> float:
        return 1 / len(writer.alphabet(CODES))

    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        codes, asks, end = writer.alphabet(CODES), questions(writer), writer.text(".")
        A, longest = codes.shape[1], max(map(len, asks))
        needle = longest + A + len(end)
        count = min(self.num_distractors, 1 + self.room(length, 2 * needle + longest + A) // needle)  # whichever names are drawn

        names = rng.permutation(len(NAMES))[: 1 + count]
        chosen = codes[rng.choice(len(codes), 1 + count, replace=False)]
        needles = [np.concatenate([asks[name], code, end]) for name, code in zip(names, chosen, strict=True)]
        depths = np.array([depth, *rng.random(count)])
        order = np.argsort(depths, kind="stable")
        row, starts = lay_out(
            writer.separator,
            length,
            writer.haystack(rng, length),
            [needles[i] for i in order],
            depths[order].tolist(),
            asks[names[0]],
            chosen[0],
        )
        start = int(starts[np.flatnonzero(order == 0)[0]])
        control = row.copy()
        control[start : start + len(needles[0])] = writer.haystack(rng, len(needles[0]))
        return Prompt(row, control, chosen[1:], (start, start + len(needles[0])))
