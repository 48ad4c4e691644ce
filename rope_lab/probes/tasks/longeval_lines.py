"""The LongEval record task: the whole context is lines, each with a label and a number, and one of them is asked for.

Shape letters: n lines, A answer tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Writer
from rope_lab.probes.tasks.needle import CODES
from rope_lab.probes.tasks.task import DepthTask, Prompt

_ADJECTIVES = (
    "brave clean eager early empty exact faint fancy fresh giant giddy grand great green happy heavy human ideal jolly large light local "
    "loyal lucky major merry minor moist naive noble outer plain proud quick quiet rapid rough round royal rural sharp short silly small "
    "smart solid steep still stout sweet swift tense tired tough upper urban vague vivid white whole windy young"
)
_NOUNS = (
    "acorn apple arrow beach berry bread brook brush cabin camel chair cloud coast crane crown daisy eagle fence field flute fruit glass "
    "goose grape grove horse hotel house knife lemon linen maple melon model money motor mouse music night ocean olive onion otter paint "
    "panda paper pearl piano plant queen raven river robin salad sheep shell shirt smoke spoon stone storm table tiger"
)
ADJECTIVES = tuple(f" {word}" for word in _ADJECTIVES.split())
NOUNS = tuple(f"-{word}" for word in _NOUNS.split())
NUMBERS = tuple(f"-{number}" for number in range(100, 1000))
CONTENTS = tuple(code[1:] for code in CODES)
MOST_DISTRACTORS = 8


@dataclass(frozen=True, kw_only=True)
class LongEvalLines(DepthTask):
    """`line brave-otter-417: REGISTER_CONTENT is <48213>`, some thousand of them; `line brave-otter-417: REGISTER_CONTENT is <` -> `48213`.

    All lines have one token count. The row is full of them; what is left, less than a line, is held-out text in front. A depth picks
    the line that is asked for, so that it is exact to half a line and does not drift with the length. No other line has the same
    label or the same content. Distractors are the contents of up to 8 other lines (of none, where only one fits: then some number).
    In the control another label and content stand in the asked line's place.

    A number follows the label's noun: LongEval's adjective and noun alone do not name the lines of a million tokens. Its question in
    words is left out, and the line's own beginning asked for, as a base model would continue it.

    Chance is 1 / 1000, or a little more where the tokenizer gives some numbers another token count; who copies the content of any line at
    random scores 1 / n.

    Source: Li et al., "How Long Can Open-Source LLMs Truly Promise on Context Length?", lmsys.org/blog/2023-06-29-longchat, line retrieval.
    """

    name: ClassVar[str] = "longeval_lines"

    def chance(self, writer: Writer) -> float:
        return 1 / len(writer.alphabet(CONTENTS))

    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        contents, parts = writer.alphabet(CONTENTS), [writer.alphabet(words) for words in (ADJECTIVES, NOUNS, NUMBERS)]
        opening, is_, end = writer.text("\nline"), writer.text(": REGISTER_CONTENT is <"), writer.text(">")
        asks = len(opening) + sum(part.shape[1] for part in parts) + len(is_)
        A, line = contents.shape[1], asks + contents.shape[1] + len(end)
        n, left = divmod(self.room(length, line + asks + A) + line, line)

        sizes = [len(part) for part in parts]
        if n + 1 > np.prod(sizes):
            raise ValueError(f"probes.{self.name}: {length=} holds {n} lines, more than tokenizer {writer.tokenizer.name!r} has labels")
        labels = np.unravel_index(rng.choice(np.prod(sizes), n + 1, replace=False, shuffle=True), sizes)
        right = rng.integers(len(contents))
        chosen = rng.integers(len(contents) - 1, size=n + 1)
        chosen += chosen >= right
        asked = round(depth * (n - 1))
        chosen[asked] = right

        texts = [opening, *(part[index] for part, index in zip(parts, labels, strict=True)), is_, contents[chosen], end]
        lines = np.concatenate([np.broadcast_to(text, (n + 1, text.shape[-1])) for text in texts], axis=1)
        front = [np.array([writer.separator]), writer.haystack(rng, left)]
        row = np.concatenate([*front, lines[:n].ravel(), lines[asked, :asks], contents[right]]).astype(np.int32)
        start = 1 + left + asked * line
        control = row.copy()
        control[start : start + line] = lines[n]  # neither its label nor the answer stands in the prompt

        others = rng.permutation(np.delete(chosen[:n], asked))[:MOST_DISTRACTORS] if n > 1 else chosen[n:]
        return Prompt(row, control, contents[others], (start, start + line))
