"""A pass key in a text that says the same thing over and over: retrieval with nothing else to attend to."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Writer, lay_out
from rope_lab.probes.tasks.needle import CODES
from rope_lab.probes.tasks.task import DepthTask, Prompt

FILLER = " The hills are green. The sea is deep. The road is long. On we walk. Out we went and back we come."


@dataclass(frozen=True, kw_only=True)
class Passkey(DepthTask):
    """`The pass key is 48213. Keep it in mind.` among repeated sentences; `What is the pass key? The pass key is` -> ` 48213`.

    The filler repeats in token space, so each repetition is the same ids. The control is filler throughout. Chance is 1 / 1000, or a
    little more where the tokenizer gives some numbers another token count.

    Source: Mohtashami and Jaggi, "Landmark Attention", arXiv:2305.16300, section 4.2; the words are ours.
    """

    name: ClassVar[str] = "passkey"

    def chance(self, writer: Writer) -> float:
        return 1 / len(writer.alphabet(CODES))

    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        codes, statement = writer.alphabet(CODES), writer.text(" The pass key is")
        right, wrong = rng.choice(len(codes), 2, replace=False)
        needle = np.concatenate([statement, codes[right], writer.text(". Keep it in mind.")])
        question = np.concatenate([writer.text(" What is the pass key?"), statement])
        room = self.room(length, len(needle) + len(question) + codes.shape[1])
        filler = np.resize(writer.text(FILLER), room + len(needle))
        row, (start,) = lay_out(writer.separator, length, filler, [needle], [depth], question, codes[right])
        control, _ = lay_out(writer.separator, length, filler, [], [], question, codes[right])
        return Prompt(row, control, codes[wrong][None], (start, start + len(needle)))
