"""The task that ``task = "..."`` of a run config names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.config import OWN, TaskConfig
from fedif_flower.tasks.task import Task


def build_task(settings: TaskConfig, facts: Mapping[str, Any] | None = None) -> Task:
    """Return the task that a run config names.

    Parameters
    ----------
    settings : TaskConfig
        ``task``, the settings of the built-in task, and those of a function of the user's own.
    facts : mapping, optional
        On a client: what the server says about its data.

    Raises
    ------
    ConfigError, DataError
        If there is no such task, or its data cannot be read.
    """
    if settings.task.startswith(OWN):
        raise ConfigError(
            f"task = {settings.task!r} is the server app's own, but this app brings no task along"
        )
    return settings.build("task", Task, {"settings": settings, "facts": facts})
