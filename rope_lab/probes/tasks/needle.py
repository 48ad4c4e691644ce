"""A needle in a haystack: one fact in real text, asked for at the end."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Writer, lay_out
from rope_lab.probes.tasks.task import Prompt, Task

NAMES = (
    *("harbour", "garden", "castle", "library", "market", "bridge", "tower", "island", "forest", "valley", "station", "museum"),
    *("palace", "chapel", "school", "theatre", "village", "mill", "farm", "river", "meadow", "temple", "prison", "hotel"),
)
CODES = tuple(f" {code}" for code in np.random.default_rng(0).permutation(np.arange(10_000, 100_000))[:1000])
"""A thousand five-digit numbers, as they follow a word."""


@dataclass(frozen=True, kw_only=True)
class Needle(Task):
    """`The code of the harbour is 48213.` somewhere in held-out text; at its end `The code of the harbour is`, answered by ` 48213`.

    Chance is 1 / 1000, or a little more where the tokenizer gives some numbers another token count.

    Source: the test is Greg Kamradt's "needle in a haystack" (github.com/gkamradt/LLMTest_NeedleInAHaystack); the words are ours.
    """

    name: ClassVar[str] = "needle"

    def chance(self, writer: Writer) -> float:
        return 1 / len(writer.alphabet(CODES))

    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        codes = writer.alphabet(CODES)
        question = writer.text(f" The code of the {NAMES[rng.integers(len(NAMES))]} is")
        right, wrong = rng.choice(len(codes), 2, replace=False)
        needle = np.concatenate([question, codes[right], writer.text(".")])
        room = self.room(length, len(needle) + len(question) + codes.shape[1])
        row, (start,) = lay_out(writer.separator, length, writer.haystack(rng, room), [needle], [depth], question, codes[right])
        end = start + len(needle)
        control = row.copy()
        control[start:end] = writer.haystack(rng, len(needle))
        return Prompt(row, control, codes[wrong][None], (start, end))
