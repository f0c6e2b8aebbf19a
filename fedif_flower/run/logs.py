"""Where the package's log goes: the doors (apps and commands) show it on standard error.

Every module logs to a child of one logger, ``fedif_flower``. Importing the library configures no
logging: in a user's own program, Python prints the library's warnings, and the user's logging
configuration applies to it as to any other package.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType

from fedif_flower.errors import require

LOGGER = "fedif_flower"
FORMATS = ("text", "json")
FORMAT_VARIABLE = "FEDIF_LOG_FORMAT"
_TEXT = "fedif %(levelname)s: %(message)s"
_NOTHING: Mapping[str, object] = MappingProxyType({})
# What lines of JSON have beside their message, in this thread: the run and the round.
_CONTEXT: ContextVar[Mapping[str, object]] = ContextVar("context", default=_NOTHING)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON in ASCII; control characters are escaped.

    The keys are ``time`` (UTC, ISO 8601), ``level``, ``logger`` and ``message``; also ``run`` and
    ``round`` where they are known, and ``exception`` where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line of JSON."""
        when = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_CONTEXT.get(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class DoorHandler(logging.Handler):
    """Prints records to what ``sys.stderr`` is at that moment.

    A progress bar and Flower's log upload replace ``sys.stderr`` for a while. A handler that kept
    the first stream would write past the replacement.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # As in every handler of Python: logging must not end a program.
            self.handleError(record)


def show_logs(log_format: str = "") -> None:
    """Show what the package logs on standard error, from the level INFO on.

    Parameters
    ----------
    log_format : {"", "text", "json"}
        The form of a line; the environment variable ``FEDIF_LOG_FORMAT`` overrides it. Empty: the
        form stays as it is, at first text.

    Raises
    ------
    ConfigError
        If the variable is set to anything but ``text`` or ``json``.
    """
    from_environment = os.environ.get(FORMAT_VARIABLE, "")
    require(
        from_environment in ("", *FORMATS), FORMAT_VARIABLE, from_environment, ", ".join(FORMATS)
    )
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    handler = _handler_of(logger)
    chosen = from_environment or log_format
    if chosen == "json":
        handler.setFormatter(JsonFormatter())
    elif chosen:
        handler.setFormatter(logging.Formatter(_TEXT))


def _handler_of(logger: logging.Logger) -> DoorHandler:
    """Return the handler that prints a logger's records; the first call adds it."""
    for handler in logger.handlers:
        if isinstance(handler, DoorHandler):
            return handler
    new = DoorHandler()
    new.setFormatter(logging.Formatter(_TEXT))
    logger.addHandler(new)
    return new


@contextmanager
def about(**words: object) -> Iterator[None]:
    """Add words such as ``run`` and ``round`` to what this thread logs in the ``with`` block."""
    token = _CONTEXT.set({**_CONTEXT.get(), **words})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def note(**words: object) -> None:
    """Add words to what this thread logs from now on, until the block of :func:`about` ends."""
    _CONTEXT.set({**_CONTEXT.get(), **words})
