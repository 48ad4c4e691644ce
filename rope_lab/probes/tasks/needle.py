"""A needle in a haystack: one fact in real text, asked for at the end."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Writer, lay_out
from rope_lab.probes.tasks.task import DepthTask, Prompt

NAMES = (
    *("harbour", "garden", "castle", "library", "market", "bridge", "tower", "island", "forest", "valley", "station", "museum"),
    *("palace", "chapel", "school", "theatre", "village", "mill", "farm", "river", "meadow", "temple", "prison", "hotel"),
)
CODES = tuple(f" {code}" for code in np.random.default_rng(0).permutation(np.arange(10_000, 100_000))[:1000])
"""A thousand five-digit numbers, as they follow a word."""


def questions(writer: Writer) -> list[np.ndarray]:
    """What asks for each name's code, and begins the needle that tells it."""
    return [writer.text(f" The code of the {name} is") for name in NAMES]


@dataclass(frozen=True, kw_only=True)
class Needle(DepthTask):
    """`The code of the harbour is 48213.` somewhere in held-out text; at its end `The code of the harbour is`, answered by ` 48213`.

    Chance is 1 / 1000, or a little more where the tokenizer gives some numbers another token count.

    Source: the test is Greg Kamradt's "needle in a haystack" (github.com/gkamradt/LLMTest_NeedleInAHaystack); the words are ours.
    """

    name: ClassVar[str] = "needle"

    def chance(self, writer: Writer) -> float:
        return 1 / len(writer.alphabet(CODES))

    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        codes, asks, stop = writer.alphabet(CODES), questions(writer), writer.text(".")
        self.room(length, 2 * max(map(len, asks)) + 2 * codes.shape[1] + len(stop))  # whichever name is drawn
        question = asks[rng.integers(len(asks))]
        right, wrong = rng.choice(len(codes), 2, replace=False)
        needle = np.concatenate([question, codes[right], stop])
        row, (start,) = lay_out(writer.separator, length, writer.haystack(rng, length), [needle], [depth], question, codes[right])
        end = start + len(needle)
        control = row.copy()
        control[start:end] = writer.haystack(rng, len(needle))
        return Prompt(row, control, codes[wrong][None], (start, end))
