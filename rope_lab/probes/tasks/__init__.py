"""Retrieval tasks, one file each; `TASKS` names them all."""

from rope_lab.probes.tasks.first_sentence import FirstSentence
from rope_lab.probes.tasks.longeval_lines import LongEvalLines
from rope_lab.probes.tasks.multikey_needle import MultikeyNeedle
from rope_lab.probes.tasks.needle import Needle
from rope_lab.probes.tasks.passkey import Passkey
from rope_lab.probes.tasks.task import Task, default_lengths
from rope_lab.probes.tasks.variable_tracking import VariableTracking

TASKS: dict[str, type[Task]] = {
    "passkey": Passkey,
    "needle": Needle,
    "multikey_needle": MultikeyNeedle,
    "longeval_lines": LongEvalLines,
    "variable_tracking": VariableTracking,
    "first_sentence": FirstSentence,
}

__all__ = [
    "TASKS",
    "FirstSentence",
    "LongEvalLines",
    "MultikeyNeedle",
    "Needle",
    "Passkey",
    "Task",
    "VariableTracking",
    "default_lengths",
]
