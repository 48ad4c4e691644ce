"""A needle in a haystack: one fact in real text, asked for at the end."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Prompts, Writer, lay_out
from rope_lab.probes.tasks.task import Task

NAMES = ("harbour", "garden", "castle", "library", "market", "bridge", "tower", "island", "forest", "valley", "station", "museum")
CODES = tuple(f" {code}" for code in np.random.default_rng(0).permutation(np.arange(10_000, 100_000))[:1000])
"""A thousand five-digit numbers, as they follow a word."""


@dataclass(frozen=True, kw_only=True)
class Needle(Task):
    """`The code of the harbour is 48213.` somewhere in held-out text; at its end `The code of the harbour is`, answered by ` 48213`.

    Chance is 1 / 1000, or a little more where the tokenizer gives some numbers another token count.

    Source: the test is Greg Kamradt's "needle in a haystack" (github.com/gkamradt/LLMTest_NeedleInAHaystack); the words are ours.
    """

    name: ClassVar[str] = "needle"

    def prompts(self, writer: Writer, length: int, depths: np.ndarray) -> Prompts:
        rng = self.rng(length)
        codes, end = writer.alphabet(CODES), writer.text(".")
        rows, controls, distractors, needles = [], [], [], []
        for depth in depths:
            question = writer.text(f" The code of the {NAMES[rng.integers(len(NAMES))]} is")
            right, wrong = rng.choice(len(codes), 2, replace=False)
            needle = np.concatenate([question, codes[right], end])
            filler = writer.haystack(rng, length)
            row, (start,) = lay_out(writer.separator, length, filler, [needle], [depth], question, codes[right])
            control = row.copy()
            control[start : start + len(needle)] = writer.haystack(rng, len(needle))
            rows.append(row)
            controls.append(control)
            distractors.append(codes[wrong][None])
            needles.append((start, start + len(needle)))
        return Prompts(
            np.stack(rows), np.stack(controls), codes.shape[1], np.stack(distractors), depths, np.array(needles, np.int32), 1 / len(codes)
        )
