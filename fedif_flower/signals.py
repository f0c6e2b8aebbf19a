"""Signals that ask a process to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does within the context: raise KeyboardInterrupt.

    A signal that is ignored stays ignored: with ``nohup``, a program is to outlive its terminal. A
    handler that was not set from Python stays as well, since it could not be put back.
    """
    handlers_before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            handlers_before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
