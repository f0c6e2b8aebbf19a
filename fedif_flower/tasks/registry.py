"""Tasks by the name that ``task = "..."`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.registry import Registry
from fedif_flower.tasks.config import IMAGES, OWN, TaskConfig
from fedif_flower.tasks.images import image_task
from fedif_flower.tasks.task import Task

TaskFactory = Callable[[TaskConfig, Mapping[str, Any] | None], Task]
"""Builds a task from the settings; on a client also from the facts that the server sent."""


def _as_factory(name: str, found: Any) -> TaskFactory:
    """Return what builds a task of a package's own: a Task, or a function that returns one."""

    def build(_settings: TaskConfig, _facts: Mapping[str, Any] | None) -> Task:
        task = found() if callable(found) else found
        if not isinstance(task, Task):
            raise ConfigError(
                f"task = {name!r} is of type {type(task).__name__}; allowed: a fedif_flower.Task, "
                "or a function without arguments that returns one"
            )
        return task

    return build


TASKS: Registry[TaskFactory] = Registry("task", {IMAGES: image_task}, _as_factory)


def build_task(settings: TaskConfig, facts: Mapping[str, Any] | None = None) -> Task:
    """Return the task that a run config names.

    Parameters
    ----------
    settings : TaskConfig
        ``task`` and the settings of the built-in one.
    facts : mapping, optional
        On a client: what the server says of its data.

    Raises
    ------
    ConfigError, DataError
        If there is no such task, or its data cannot be read.
    """
    if settings.task.startswith(OWN):
        raise ConfigError(
            f"task = {settings.task!r} is the server app's own, but this app brings no task along"
        )
    return TASKS[settings.task](settings, facts)
