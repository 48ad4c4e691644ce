"""A retrieval task on its grid of lengths and depths: accuracy, log-probability, margin, and the control without the needle.

Shape letters: S lengths, C depths, R prompts at each.
"""

import numpy as np

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
        self._depths = np.linspace(0, 1, task.num_depths) if task.num_depths > 1 else np.array([0.5])
        lengths = task.lengths or default_lengths(context_length)
        self._prompts: dict[int, Prompts] = {
            length: task.prompts(writer, length, np.repeat(self._depths, task.samples)) for length in lengths
        }

    def __call__(self, params: dict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        C, R = self._task.num_depths, self._task.samples
        correct, control, log_prob, margin, distances = [], [], [], [], []
        for prompts in self._prompts.values():
            scores = self._scorer.answers(params, prompts.tokens, prompts.answer_length, prompts.distractors)
            removed = self._scorer.answers(params, prompts.control, prompts.answer_length, prompts.distractors)
            correct.append((scores.predicted == prompts.answers).all(axis=1).reshape(C, R))
            control.append((removed.predicted == prompts.answers).all(axis=1).reshape(C, R))
            log_prob.append(scores.log_probs.sum(axis=1).reshape(C, R))
            margin.append(scores.margins.reshape(C, R))
            distances.append(prompts.distances.reshape(C, R))
        lengths = np.array(list(self._prompts))
        scalars = length_scalars(lengths, [outcome.ravel() for outcome in correct], self._task.threshold) | {
            "answer_log_probability_nats": float(np.mean(log_prob)),
            "margin_nats": float(np.mean(margin)),
            "control_accuracy": float(np.mean(control)),
            "chance": next(iter(self._prompts.values())).chance,
        }
        arrays = {
            "lengths_tokens": lengths,
            "depths": self._depths,
            "accuracy": np.mean(correct, axis=2),
            "correct": np.array(correct),
            "control_correct": np.array(control),
            "answer_log_probability_nats": np.array(log_prob),
            "margin_nats": np.array(margin),
            "distance_tokens": np.array(distances),
        }
        return scalars, arrays
