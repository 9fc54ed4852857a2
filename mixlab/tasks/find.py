"""Which task a head belongs to: the folder is searched, so that adding a task is adding a file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from mixlab.errors import unknown
from mixlab.tasks.base import Task
from mixlab.tasks.job import Job


def task_of(job: Job, say: Callable[[str], None] = lambda note: None) -> Task:
    """The task of a job; `say` is told what its data hold."""
    found = {head: task for task in tasks() for head in task.heads}
    if job.task not in found:
        raise unknown("task with a recipe", job.task, found)
    return found[job.task](job, say)


def tasks() -> list[type[Task]]:
    package = importlib.import_module("mixlab.tasks")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"mixlab.tasks.{module.name}")
    return Task.__subclasses__()
