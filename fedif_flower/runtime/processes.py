"""A command line's process: a signal that asks it to end, and how it is called again."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType


class StopRequest:
    """Remembers a signal that asks for an end, so that nothing is interrupted halfway.

    A context manager; inside it SIGINT, SIGTERM and SIGHUP only set :attr:`signal_number`.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __enter__(self) -> StopRequest:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._remember) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.signal_number = number


def own_command(*more: str) -> str:
    """Return the command line of this process, with more arguments, as a shell takes it."""
    python, *arguments = sys.orig_argv
    if arguments and os.access(arguments[0], os.X_OK):  # A script that names its interpreter.
        script, *arguments = arguments
        name = Path(script).name
        return shlex.join([name if shutil.which(name) == script else script, *arguments, *more])
    return shlex.join([python, *arguments, *more])
