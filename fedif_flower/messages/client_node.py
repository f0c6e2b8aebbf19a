"""A client as the server knows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedif_flower.messages.text import one_line, printable

UNKNOWN_PARTITION = -1
_SHORT_ID = 8  # Digits of a node id that logs show.


@dataclass(frozen=True, order=True)
class ClientNode:
    """One client as the server knows it, in the order in which replies are aggregated.

    Attributes
    ----------
    partition_id : int
        Which part of the data it holds; -1 if it has not said so.
    node_id : int
        Flower's id, by which it is reached.
    attack : str
        What a node in a demo or test says of its own behaviour; empty: nothing said. Only ever
        used to mark clients in a report.
    name : str
        What the operator calls it; empty: nothing.
    note : str
        What is odd about it, for logs and reports.
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
        """Make all text fit for logs and tables: a node may have said it of itself."""
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
        """The key of every score: the node id, or the partition where clients are simulated.

        Authenticated SuperNodes keep their node id for good. Elsewhere than in a simulation a
        partition id is no more than a client's claim, under which nothing may be inherited.
        """
        if self.is_simulated:
            return self.partition_id
        return self.node_id

    @property
    def called(self) -> str:
        """What it is called (see :func:`called`)."""
        return called(self.client_id, self.partition_id, self.name)

    @property
    def label(self) -> str:
        """How a log names it: what it is called, with a short node id where that lasts."""
        node = called(self.node_id, UNKNOWN_PARTITION)
        if self.is_simulated or self.called == node:
            return self.called
        return f"{self.called} ({node})"


def called(client_id: int, partition_id: int, name: str = "") -> str:
    """Return what a client is called everywhere: ``hospital-a``, ``client 4`` or ``node 17..``.

    Parameters
    ----------
    client_id : int
        The key of its scores, which names it where nothing else is known.
    partition_id : int
        Which part of the data it holds; -1 if that is not known.
    name : str
        What the operator calls it; empty: nothing.
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
    """Return names by client id, with the id behind those that several have."""
    different = dict(names)
    while True:
        counts = Counter(different.values())
        if len(counts) == len(different):
            return different
        # With an id behind it, a name may be one that somebody has: then both get theirs.
        for client_id, name in different.items():
            if counts[name] > 1:
                different[client_id] = f"{name} ({client_id})"
