"""Retrieval tasks, one file each; `TASKS` names them all."""

from rope_lab.probes.tasks.needle import Needle
from rope_lab.probes.tasks.task import Task, default_lengths

TASKS: dict[str, type[Task]] = {
    "needle": Needle,
}

__all__ = ["TASKS", "Needle", "Task", "default_lengths"]
