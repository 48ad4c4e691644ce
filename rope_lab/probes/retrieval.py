"""A retrieval task on its grid of lengths and depths: accuracy, log-probability, margin, and the control without the needle.

Shape letters: S lengths, C depths, R prompts at each.
"""

import numpy as np
from flax import nnx

from rope_lab.model.generate import generate
from rope_lab.probes.effective_length import length_scalars
from rope_lab.probes.prompts import Prompts, Writer
from rope_lab.probes.score import Scorer
from rope_lab.probes.tasks import Task, default_lengths


class RetrievalProbe:
    """Scores a task's prompts, all answers teacher-forced: exact match is what greedy decoding would score.

    Args:
      scorer: runs the model.
      task: what is asked, and on which grid.
      writer: the tokenizer, and the text around.
      context_length: used where the task names no lengths, tokens.

    Raises:
      ValueError: if the task does not fit one of its lengths.
    """

    def __init__(self, scorer: Scorer, task: Task, writer: Writer, context_length: int):
        self._scorer, self._task = scorer, task
        self._depths = task.depths
        lengths = task.lengths or default_lengths(context_length)
        self._prompts: dict[int, Prompts] = {
            length: task.prompts(writer, length, np.repeat(self._depths, task.samples)) for length in lengths
        }

    def __call__(self, params: dict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        C, R = len(self._depths), self._task.samples
        arrays: dict[str, list[np.ndarray]] = {}
        for prompts in self._prompts.values():
            scores = self._scorer.answers(params, prompts.tokens, prompts.answer_length, prompts.distractors)
            removed = self._scorer.answers(params, prompts.control, prompts.answer_length, prompts.distractors)
            measured = {
                "correct": (scores.predicted == prompts.answers).all(axis=1),
                "control_correct": (removed.predicted == prompts.answers).all(axis=1),
                "answer_log_probability_nats": scores.log_probs.sum(axis=1),
                "margin_nats": scores.margins,
                "distance_tokens": prompts.distances,
                **self._task.measures(scores.predicted, prompts.answers),
                **{f"control_{name}": value for name, value in self._task.measures(removed.predicted, prompts.answers).items()},
            }
            for name, value in measured.items():
                arrays.setdefault(name, []).append(value.reshape(C, R))
        lengths = np.array(list(self._prompts))
        stacked = {name: np.stack(values) for name, values in arrays.items()}
        means = {name: float(values.mean()) for name, values in stacked.items() if name != "correct" and name != "distance_tokens"}
        means["control_accuracy"] = means.pop("control_correct")
        scalars = length_scalars(lengths, [outcome.ravel() for outcome in stacked["correct"]], self._task.threshold) | means
        scalars["chance"] = next(iter(self._prompts.values())).chance
        accuracies = {f"{kind}accuracy": stacked[f"{kind}correct"].mean(axis=2) for kind in ("", "control_")}
        return scalars, {"lengths_tokens": lengths, "depths": self._depths} | accuracies | stacked


def generated_matches(graph: nnx.GraphDef, params: dict, prompts: Prompts, tokens_per_pass: int = 16_384) -> np.ndarray:
    """Which answers the model generates, token by token through the cache: what `RetrievalProbe` finds in one forward pass, to check it.

    Args:
      graph, params: the model.
      prompts: of one length.
      tokens_per_pass: rows generated together are chosen so that they hold about so many tokens.

    Returns:
      bool `(N,)`: greedy decoding gives the whole answer.
    """
    asked = prompts.tokens[:, : -prompts.answer_length]
    N, rows = len(asked), max(1, tokens_per_pass // asked.shape[1])
    padded = np.concatenate([asked, np.repeat(asked[:1], -N % rows, axis=0)])
    decoded = [generate(graph, params, padded[i : i + rows], prompts.answer_length) for i in range(0, N, rows)]
    return (np.concatenate(decoded)[:N] == prompts.answers).all(axis=1)
