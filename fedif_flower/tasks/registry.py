"""Tasks by the name that ``task = "..."`` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.registry import Registry
from fedif_flower.sections import make
from fedif_flower.tasks.config import IMAGES, OWN, TaskConfig
from fedif_flower.tasks.images import image_task
from fedif_flower.tasks.task import Task

# The built-in task takes the settings, and on a client the facts that the server sent.
TASKS = Registry("task", {IMAGES: image_task}, offered=("settings", "facts"))


def build_task(settings: TaskConfig, facts: Mapping[str, Any] | None = None) -> Task:
    """Return the task that a run config names.

    Parameters
    ----------
    settings : TaskConfig
        ``task``, the settings of the built-in one, and those of a function of one's own.
    facts : mapping, optional
        On a client: what the server says of its data.

    Raises
    ------
    ConfigError, DataError
        If there is no such task, or its data cannot be read.
    """
    name = settings.task
    if name.startswith(OWN):
        raise ConfigError(
            f"task = {name!r} is the server app's own, but this app brings no task along"
        )
    offered = {"settings": settings, "facts": facts}
    task = make(f"task {name!r}", TASKS[name], offered, settings.settings_of("task"))
    if not isinstance(task, Task):
        raise ConfigError(
            f"task = {name!r} is of type {type(task).__name__}; allowed: a fedif_flower.Task, "
            "or a function that returns one"
        )
    return task
