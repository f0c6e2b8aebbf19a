"""What a run is doing at this moment, in a small file for those who watch the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from copy import deepcopy
from typing import Any, Literal

from fedif_flower.errors import StorageError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.text import one_line
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import Built, RunContext, RunPart
from fedif_flower.server.record import Round
from fedif_flower.server.run import Callback, RunningStrategy

Phase = Literal["starting", "training", "evaluating", "finished", "stopped", "failed"]
SECONDS_PER_WRITE = 1.0  # The shortest time from one write to the next.
SECONDS_PER_SIGN = 10.0  # Without changes the file is written this often, as a sign of life.
MOST_MEMBERS = 10_000  # Of each kind, the file lists this many members at most.
logger = logging.getLogger(__name__)


class KeepLiveState(RunPart):
    """Keeps ``state.json`` up to date, for ``fedif runs`` and the page to watch a run."""

    def build(self, run: RunContext) -> Built:
        """Return the callback that keeps ``state.json`` up to date."""
        return Built(callbacks=[LiveState(run.folder, run.stack)])


class LiveState(Callback):
    """Keeps ``state.json`` up to date while a run goes on.

    A thread replaces the whole file at most once a second and at least every ten seconds, so that
    the file's age tells whether the run still goes on. The file is no record of the run: no
    statement signs it, and no checkpoint holds it. A full disk does not end the run here.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    stack : ExitStack
        It is closed when the run is over; the last state is written then.
    """

    def __init__(self, folder: RunFolder, stack: ExitStack) -> None:
        self._stack = stack
        self._file = folder.live
        self._lock = threading.Lock()  # Guards _state: the run changes it, the thread copies it.
        self._changed = threading.Event()  # There is a change that is not written yet.
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, name="live state", daemon=True)
        self._state: dict[str, Any] = {"started": time.time(), "answered": [], "failed": []}
        self._set("starting")

    def on_start(self, strategy: RunningStrategy) -> None:
        """Begin to write the file; it is kept up to date until the run is over."""
        strategy.intake.on_reply.append(self.note_reply)
        self._thread.start()
        self._stack.push(self._end)

    def _end(self, kind: object, error: BaseException | None, trace: object) -> None:  # noqa: ARG002
        """Write how the run ended; ``error`` is what ended it, as an exit function gets it."""
        if isinstance(error, Exception):
            self._set("failed", reason=one_line(error))
        elif error is not None:  # Ctrl+C or another signal, which is no Exception.
            self._set("stopped")
        else:
            self._set("finished")
        self._over.set()
        self._changed.set()
        self._thread.join()
        self.write()

    def on_asked(self, current: Round) -> None:
        """Note whom a round asks."""
        online = None
        if len(current.online) <= MOST_MEMBERS:
            online = [node.client_id for node in current.online]
        self._set(
            "training",
            answered=[],
            failed=[],
            round=current.round,
            since=time.time(),
            num_asked=len(current.members),
            num_answered=0,
            num_online=len(current.online),
            asked=_nodes(current.members),
            at_work=_nodes(current.at_work),
            paused=sorted(current.paused)[:MOST_MEMBERS],
            online=online,
        )

    def note_reply(self, node: ClientNode, is_error: bool) -> None:
        """Note that a member answered, with an error or without."""
        outcome = "failed" if is_error else "answered"
        with self._lock:
            replied = self._state[outcome]
            if len(replied) < MOST_MEMBERS:
                replied.append(node.client_id)
            self._state["num_answered"] += 1
        self._changed.set()

    def on_round(self, report: Round) -> None:
        """Note that the replies are combined, so that the model is evaluated now."""
        self._set("evaluating", round=report.round)

    def write(self) -> None:
        """Replace the file now; if it cannot be written, that is only logged."""
        with self._lock:
            content = deepcopy(self._state)
            content["time"] = time.time()
        try:
            self._file.write(content)
        except StorageError as error:
            logger.debug("%s", error)

    def _set(self, phase: Phase, **more: object) -> None:
        """Change the state; the thread writes it soon."""
        with self._lock:
            self._state |= {"phase": phase, **more}
        self._changed.set()

    def _keep_writing(self) -> None:
        """Write the state again and again until the run is over; the thread runs this."""
        while not self._over.is_set():
            # Cleared before writing, so that a change during the write leads to another write.
            self._changed.clear()
            self.write()
            self._over.wait(SECONDS_PER_WRITE)
            self._changed.wait(SECONDS_PER_SIGN - SECONDS_PER_WRITE)


def _nodes(nodes: Collection[ClientNode]) -> list[Mapping[str, object]]:
    """Return ids and names of nodes, of the first :data:`MOST_MEMBERS`."""
    return [
        {"client_id": node.client_id, "partition_id": node.partition_id, "name": node.name}
        for node in list(nodes)[:MOST_MEMBERS]
    ]
