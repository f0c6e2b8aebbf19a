"""Where the package's log goes: the doors show it on standard error.

Every module logs to a child of one logger, ``fedif_flower``. The library configures nothing: in a
notebook or a program of the user's own, Python prints its warnings, and a logging configuration
of theirs applies as to any other package.
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
# What lines of JSON say beside their message: the run and the round.
_CONTEXT: ContextVar[Mapping[str, object]] = ContextVar("context", default=_NOTHING)


class JsonFormatter(logging.Formatter):
    """Makes one line of JSON in ASCII of a record, control characters escaped.

    Its keys are ``time`` (UTC, ISO 8601), ``level``, ``logger`` and ``message``, ``run`` and
    ``round`` where they are known, and ``exception`` where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
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
    """Prints records to what standard error is at that moment.

    A progress bar and Flower's log upload put something else in place of ``sys.stderr`` for a
    while; a handler that kept the first one would write past them.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # as every handler of Python: logging never ends a program
            self.handleError(record)


def show_logs(log_format: str = "") -> None:
    """Show what the package logs, information and worse.

    Parameters
    ----------
    log_format : {"", "text", "json"}
        How a line looks, unless the environment's ``FEDIF_LOG_FORMAT`` says so. Empty: as it is.

    Raises
    ------
    ConfigError
        If that variable is neither ``text`` nor ``json``.
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
    """Return the logger's own handler, which is added by the first call."""
    for handler in logger.handlers:
        if isinstance(handler, DoorHandler):
            return handler
    new = DoorHandler()
    new.setFormatter(logging.Formatter(_TEXT))
    logger.addHandler(new)
    return new


@contextmanager
def about(**words: object) -> Iterator[None]:
    """Let what this thread logs within say what it is about: ``run``, ``round``."""
    token = _CONTEXT.set({**_CONTEXT.get(), **words})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def note(**words: object) -> None:
    """Let what this thread logs from now on, within :func:`about`, say this as well."""
    _CONTEXT.set({**_CONTEXT.get(), **words})
