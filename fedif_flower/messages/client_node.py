"""A client as the server knows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedif_flower.messages.text import one_line, printable

UNKNOWN_PARTITION = -1
_SHORT_ID = 8  # How many digits of a node id logs show.


@dataclass(frozen=True, order=True)
class ClientNode:
    """One client as the server knows it.

    Nodes compare by partition id first: sorted, they stand in the order in which their replies
    are aggregated.

    Attributes
    ----------
    partition_id : int
        Which part of the data the client holds; -1 if the client has not said so.
    node_id : int
        Flower's id, to which messages are sent.
    attack : str
        The attack that a node in a demo or test says it carries out; empty if it says nothing.
        Reports mark clients by it; nothing else depends on it.
    name : str
        The operator's name for the client; empty if there is none.
    note : str
        What is odd about the client, for logs and reports.
    is_simulated : bool
        Whether Flower gives the client another node id in every run.
    """

    partition_id: int
    node_id: int
    attack: str = ""
    name: str = ""
    note: str = field(default="", compare=False)
    is_simulated: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        """Make all texts fit for logs and tables: they may come from the node itself."""
        for field_name, max_length, clean in (
            ("attack", 40, printable),
            ("name", 80, one_line),
            ("note", 200, printable),
        ):
            text = getattr(self, field_name)
            if text:
                object.__setattr__(self, field_name, clean(text, max_length))

    @property
    def client_id(self) -> int:
        """The key of the client's scores: its node id, or in a simulation its partition id.

        Authenticated SuperNodes keep their node id for good. Outside a simulation a partition id
        is only what the client claims, so nobody may inherit scores by naming one.
        """
        if self.is_simulated:
            return self.partition_id
        return self.node_id

    @property
    def called(self) -> str:
        """The client's name for people (see :func:`called`)."""
        return called(self.client_id, self.partition_id, self.name)

    @property
    def label(self) -> str:
        """The client's name in logs: with its short node id, unless the client is simulated."""
        node = called(self.node_id, UNKNOWN_PARTITION)
        if self.is_simulated or self.called == node:
            return self.called
        return f"{self.called} ({node})"


def called(client_id: int, partition_id: int, name: str = "") -> str:
    """Return a client's name for people: ``hospital-a``, ``client 4`` or ``node 17..``.

    Logs, tables and reports all use this name.

    Parameters
    ----------
    client_id : int
        The key of the client's scores. It makes the name where nothing else is known.
    partition_id : int
        Which part of the data the client holds; -1 if that is not known.
    name : str
        The operator's name for the client; empty if there is none.
    """
    if name:
        return name
    if partition_id != UNKNOWN_PARTITION:
        return f"client {partition_id}"
    digits = str(client_id)
    if len(digits) > _SHORT_ID:
        digits = f"{digits[:_SHORT_ID]}.."
    return f"node {digits}"


def all_different(names: Mapping[int, str]) -> dict[int, str]:
    """Return names by client id, where equal names are made different by adding the client id."""
    different = dict(names)
    while True:
        counts = Counter(different.values())
        if len(counts) == len(different):
            return different
        # A name with an id added may equal another client's name: the loop then adds ids to both.
        for client_id, name in different.items():
            if counts[name] > 1:
                different[client_id] = f"{name} ({client_id})"
