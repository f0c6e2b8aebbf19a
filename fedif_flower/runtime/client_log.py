"""What the package warns of in Ray's actors, brought to the process that started them.

Ray can print an actor's output beside the server's, but only all of it, with its own notices. Here
a node's warnings travel in its state, which Flower brings back with every reply, and are logged
again where the server logs. The ClientApp and the strategy see none of it.
"""

from __future__ import annotations

import json
import logging
from threading import Lock

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedif_flower.run.logs import LOGGER

RECORD = "fedif-flower.log"  # In a node's state, on the way back alone.
MAX_MESSAGES = 100  # Different ones of an actor: a text with a number in it never repeats.


class _Collector(logging.Handler):
    """Keeps warnings until they are taken, each message once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: set[str] = set()
        self._new: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that says something new."""
        message = record.getMessage()
        if message not in self._seen and len(self._seen) < MAX_MESSAGES:
            self._seen.add(message)
            self._new.append(record)

    def take(self) -> list[tuple[str, int, str]]:
        """Return what is new, as logger, level and message, and forget it."""
        records, self._new = self._new, []
        return [(record.name, record.levelno, record.getMessage()) for record in records]


_collector = _Collector()


def collect_warnings() -> None:
    """Begin to collect, in an actor; again without effect."""
    logging.getLogger(LOGGER).addHandler(_collector)


class LoggedApp(ClientApp):
    """A ClientApp as an actor runs it: what is warned of there leaves in the node's state.

    Parameters
    ----------
    client_app : ClientApp
        The app, of which nothing else changes.
    """

    def __init__(self, client_app: ClientApp) -> None:
        super().__init__()
        self._inner = client_app

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message; what an earlier one warned of before it failed comes along."""
        collect_warnings()
        reply = self._inner(message, context)
        if warned := _collector.take():
            context.state[RECORD] = ConfigRecord({"log": json.dumps(warned)})
        return reply


class ClientLog:
    """Logs what came back from the actors, each message once however many of them say it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: set[str] = set()

    def log(self, context: Context) -> None:
        """Take the warnings out of a node's state and log them under their own names."""
        record = context.state.config_records.pop(RECORD, None)
        for name, level, message in json.loads(str(record["log"])) if record else ():
            with self._lock:
                new = message not in self._seen
                self._seen.add(message)
            if new:
                logging.getLogger(name).log(level, "in a client: %s", message)
