"""Where the package's log goes: the doors show it on standard error.

Every module logs to a child of one logger, ``fedif_flower``. The library configures nothing: in a
notebook or a program of the user's own, Python prints its warnings, and a logging configuration
of theirs applies as to any other package.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LOGGER = "fedif_flower"
_CELL: ContextVar[str] = ContextVar("cell", default="")


class DoorHandler(logging.Handler):
    """Prints ``fedif WARNING: [cell] message`` to what standard error is at that moment.

    A progress bar and Flower's log upload put something else in place of ``sys.stderr`` for a
    while; a handler that kept the first one would write past them.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, with the cell of a grid that it is about before the message."""
        try:
            cell = f"[{_CELL.get()}] " if _CELL.get() else ""
            sys.stderr.write(f"fedif {record.levelname}: {cell}{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # as every handler of Python: logging never ends a program
            self.handleError(record)


def show_logs(level: int = logging.INFO) -> None:
    """Show what the package logs, from this level on; a second call changes nothing."""
    logger = logging.getLogger(LOGGER)
    logger.setLevel(level)
    if not any(isinstance(handler, DoorHandler) for handler in logger.handlers):
        logger.addHandler(DoorHandler())


@contextmanager
def about_cell(name: str) -> Iterator[None]:
    """Put a cell's name before what this thread logs within."""
    token = _CELL.set(name)
    try:
        yield
    finally:
        _CELL.reset(token)
