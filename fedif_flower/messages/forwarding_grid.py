"""The base of grids that wrap another one: every call is handed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from flwr.app import Message
from flwr.serverapp import Grid


class ForwardingGrid(Grid):
    """Hands every call on to another grid; a subclass adds ``send_and_receive``.

    Parameters
    ----------
    grid : Grid
        The way to the clients, kept as ``inner``.
    """

    def __init__(self, grid: Grid) -> None:
        self.inner = grid

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """The run that the grid belongs to."""
        return self.inner.run

    def create_message(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse: it is deprecated in Flower."""
        raise RuntimeError("construct a flwr.app.Message instead")

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are online."""
        return self.inner.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes that are online."""
        return self.inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        return self.inner.pull_messages(message_ids)
