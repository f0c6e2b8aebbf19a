"""Signals that ask a process for its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does: raise KeyboardInterrupt.

    One that is ignored stays so: ``nohup`` has a program outlive its terminal.
    """
    known = (signal.SIGTERM, signal.SIGHUP)
    asked = [number for number in known if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
