"""Variables assigned to one another: which of them hold a value can only be told hop by hop.

Shape letters: V variables of the chain, A answer tokens.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Writer, lay_out
from rope_lab.probes.tasks.needle import CODES
from rope_lab.probes.tasks.task import DepthTask, Prompt

_LETTERS = np.array(list("BCDFGHJKLMNPQRSTVWXZ"))
VARIABLES = tuple(" " + "".join(_LETTERS[[i // 400, i // 20 % 20, i % 20]]) for i in np.random.default_rng(0).permutation(8000)[:1000])
"""A thousand names of three consonants, as they follow a word."""


@dataclass(frozen=True, kw_only=True)
class VariableTracking(DepthTask):
    """`VAR KTR = 48213.`, `VAR ZBD = KTR.`, ... in order through held-out text; `Variables equal to 48213:` -> ` KTR ZBD ...`.

    The answer is all names of the chain, in order. Its first assignment stands at the asked depth; the others follow at equal
    distances, up to the haystack's end. Where it fits, a second chain with another value stands at random depths; its names, or else
    unused ones, are the distractor. The control has text in place of the chain, and the second chain still. Chance is that of naming so
    many different variables in order, next to nothing.

    Attributes:
      num_hops: assignments of a variable to a variable; the chain has one variable more.

    Source: variable tracking of Hsieh et al., "RULER", arXiv:2404.06654, section 3; the words are ours.
    """

    name: ClassVar[str] = "variable_tracking"
    copies: ClassVar[int] = 0

    num_hops: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("num_hops")

    def chance(self, writer: Writer) -> float:
        return 1 / math.perm(len(writer.alphabet(VARIABLES)), self.num_hops + 1)

    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        names, codes, V = writer.alphabet(VARIABLES), writer.alphabet(CODES), self.num_hops + 1
        if len(names) < 2 * V:
            raise ValueError(f"probes.{self.name}.num_hops={self.num_hops} must be below {len(names) // 2}: two chains of different names")
        chosen = names[rng.choice(len(names), 2 * V, replace=False)]
        values = codes[rng.choice(len(codes), 2, replace=False)]
        question = np.concatenate([writer.text(" Variables equal to"), values[0], writer.text(":")])
        answer, wrong = chosen[:V].ravel(), chosen[V:].ravel()
        inserts = _chain(writer, chosen[:V], values[0])
        total = sum(map(len, inserts))
        depths = depth + (1 - depth) * np.arange(V) / V
        if self.room(length, total + len(question) + len(answer)) >= total:
            inserts += _chain(writer, chosen[V:], values[1])
            depths = np.concatenate([depths, np.sort(rng.random(V))])
        order = np.argsort(depths, kind="stable")
        row, starts = lay_out(
            writer.separator,
            length,
            writer.haystack(rng, length),
            [inserts[i] for i in order],
            depths[order].tolist(),
            question,
            answer,
        )
        places = starts[np.argsort(order)]
        control = row.copy()
        for place, insert in zip(places[:V].tolist(), inserts[:V], strict=True):
            control[place : place + len(insert)] = writer.haystack(rng, len(insert))
        return Prompt(row, control, wrong[None], (int(places[0]), int(places[0]) + len(inserts[0])))


def _chain(writer: Writer, names: np.ndarray, value: np.ndarray) -> list[np.ndarray]:
    """The assignments, in order: the value to the first name, and each name to the next."""
    var, equals, end = writer.text(" VAR"), writer.text(" ="), writer.text(".")
    return [np.concatenate([var, name, equals, held, end]) for name, held in zip(names, [value, *names[:-1]], strict=True)]
