"""Tasks by the name that ``task = "..."`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fedif_flower.tasks.config import IMAGES, TaskConfig
from fedif_flower.tasks.images import image_task
from fedif_flower.tasks.task import Task

TaskFactory = Callable[[TaskConfig, Mapping[str, Any] | None], Task]
"""Builds a task from the settings; on a client also from the facts that the server sent."""

TASKS: Mapping[str, TaskFactory] = MappingProxyType({IMAGES: image_task})


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
    return TASKS[settings.task](settings, facts)
