"""The members of a federation: who is online, and whom a round may ask."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from flwr.serverapp import Grid

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.strategies.callbacks import Callback, admitted
from fedif_flower.strategies.failures import MemberFailures
from fedif_flower.strategies.nodes import NodeDirectory
from fedif_flower.strategies.presence import Change, RollCall
from fedif_flower.strategies.setup import Setup


class Members:
    """Knows the nodes, those of them that err, and what is news about them.

    Parameters
    ----------
    setup : Setup
        Who names nodes, how long they are waited for, and for how long they are paused.
    """

    def __init__(self, setup: Setup) -> None:
        self.nodes = NodeDirectory(setup.identify, setup.node_timeout)
        self.failures = MemberFailures(setup.max_failed_rounds, setup.max_paused_turns)
        self.online: list[ClientNode] = []  # When the round began.
        self._roll = RollCall()
        self._news: tuple[Change, ...] = ()

    def candidates(
        self,
        grid: Grid,
        server_round: int,
        at_least: int,
        at_first: int,
        at_work: Collection[int],
        callbacks: Iterable[Callback],
    ) -> Sequence[ClientNode]:
        """Wait for enough nodes; return those that may be drawn in a round.

        Parameters
        ----------
        grid : Grid
            The way to the members.
        server_round : int
            The round.
        at_least, at_first : int
            So many nodes are waited for: ``min_train_nodes``, and if that is more (0 in a run that
            has begun), ``min_available_nodes``.
        at_work : collection of int
            Those whose replies to earlier rounds are still awaited, by node.
        callbacks : iterable of Callback
            They may bar members.
        """
        if at_first > at_least:
            self.online = self.nodes.online(grid, at_first)
        else:
            self.online = self.nodes.online(grid, at_least, "min_train_nodes")
        free = self.failures.available(self.online, server_round, at_least)
        idle = [node for node in free if node.node_id not in at_work]
        chosen = admitted(callbacks, idle, server_round, at_least)
        paused, barred = _without(self.online, free), _without(idle, chosen)
        self._news += self._roll.call(grid, self.nodes, self.online, paused=paused, barred=barred)
        return chosen

    def news(self) -> tuple[Change, ...]:
        """Return what changed since this was asked last."""
        news, self._news = self._news, ()
        return news


def _without(nodes: Sequence[ClientNode], kept: Sequence[ClientNode]) -> list[ClientNode]:
    """Return the nodes that are not among others, which are some of them."""
    if len(kept) == len(nodes):
        return []
    ids = {node.node_id for node in kept}
    return [node for node in nodes if node.node_id not in ids]
