"""The opening of a text, asked for at its end: what a model gives back of the farthest tokens it was given.

Shape letters: N prompts, A answer tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rope_lab.probes.prompts import Writer, lay_out
from rope_lab.probes.tasks.task import Prompt, Task


def rouge_l(predicted: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """ROUGE-L over tokens: the F1 of `LCS / predicted tokens` and `LCS / answer tokens`, LCS the longest common subsequence's length.

    Args:
      predicted: int32 `(N, P)`.
      answers: int32 `(N, A)`.

    Returns:
      float64 `(N,)`, 0 to 1.

    Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004, section 3.1, with precision and recall weighing the same.
    """
    N, P = predicted.shape
    A = answers.shape[1]
    longest = np.zeros((P + 1, A + 1, N), np.int64)
    for i in range(P):
        for j in range(A):
            longer = np.maximum(longest[i, j + 1], longest[i + 1, j])
            longest[i + 1, j + 1] = np.where(predicted[:, i] == answers[:, j], longest[i, j] + 1, longer)
    return 2 * longest[P, A] / (P + A)


@dataclass(frozen=True, kw_only=True)
class FirstSentence(Task):
    """Held-out text, and at its end `The text above begins:`, answered by the text's first tokens.

    Besides exact match, `rouge_l`: of the tokens that are likeliest given the right ones before, not of a text that the model
    generates on its own. Of real text some are guessed without retrieval; `control_rouge_l`, with other text where the opening was,
    tells how many.

    The text begins anywhere in the held-out documents, with tokens that do not come again before the end. The opening has one place, so
    there is one depth, 0. Chance is that of an exact match by naming any place of the held-out text.

    Attributes:
      answer_tokens: A.

    Source: FIRST-SENTENCE-RETRIEVAL of Xiong et al., "Effective Long-Context Scaling of Foundation Models", arXiv:2309.16039, section 4.1;
      there the answer is a whole sentence, here a fixed number of tokens.
    """

    name: ClassVar[str] = "first_sentence"

    samples: int = 20
    answer_tokens: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("answer_tokens")

    @property
    def depths(self) -> np.ndarray:
        return np.zeros(1)

    def chance(self, writer: Writer) -> float:
        return 1 / writer.num_places

    def measures(self, predicted: np.ndarray, answers: np.ndarray) -> dict[str, np.ndarray]:
        return {"rouge_l": rouge_l(predicted, answers)}

    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        A = self.answer_tokens
        if writer.num_places < 2 * A:
            raise ValueError(f"probes.{self.name}.answer_tokens={A} must be at most half the held-out text, {writer.num_places} tokens")
        question = writer.text(" The text above begins:")
        room = self.room(length, 2 * A + len(question))
        place = int(rng.integers(writer.num_places))
        opening = writer.from_place(place, A)
        rest = writer.from_place(place + A, room, without=A)  # a prompt longer than the text does not come round to the answer
        row, _ = lay_out(writer.separator, length, rest, [opening], [0.0], question, opening)
        control = row.copy()
        control[1 : 1 + A] = other = writer.haystack(rng, A)
        return Prompt(row, control, other[None], (1, 1 + A))
