"""The members of a federation: who is online, and who may be asked in a round.

A member may be asked if it is online, not paused after errors, not still at work for an earlier
round, and not barred by a callback.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flwr.serverapp import Grid

from fedif_flower.errors import require
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode, all_different, called
from fedif_flower.server.failures import MemberFailures
from fedif_flower.server.nodes import (
    MOST_QUESTIONS,
    Identify,
    identify_unasked,
    wait_for_nodes,
)
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)

# Takes nodes and the round, and returns the nodes that may be drawn in it.
Admit = Callable[[Sequence[ClientNode], int], Sequence[ClientNode]]


@dataclass(frozen=True)
class Present:
    """The nodes that are there when a round begins.

    Attributes
    ----------
    online : sequence of ClientNode
        All nodes that are online.
    candidates : sequence of ClientNode
        The nodes among them that may be drawn.
    """

    online: Sequence[ClientNode]
    candidates: Sequence[ClientNode]


class Roster:
    """The members of a federation, and which of them may be drawn in a round.

    Parameters
    ----------
    directory : NodeDirectory
        Knows which nodes are online, and which partition each holds.
    failures : MemberFailures
        Knows which members are paused after errors.

    Attributes
    ----------
    admit : list of callable
        Filters that are applied in their order: each takes nodes and the round, and returns the
        nodes that may be drawn. A callback that bars members adds a filter in its ``on_start``.
    """

    def __init__(self, directory: NodeDirectory, failures: MemberFailures) -> None:
        self.directory = directory
        self.failures = failures
        self.admit: list[Admit] = []

    def begin(self) -> None:
        """Remove all filters when a run begins: its callbacks add their own."""
        self.admit.clear()

    def call(
        self,
        grid: Grid,
        server_round: int,
        *,
        least: int,
        awaited: int,
        key: str,
        at_work: Collection[int],
    ) -> Present:
        """Wait until enough members are online, and return them and those that may be drawn.

        Parameters
        ----------
        grid : Grid
            The connection to the members.
        server_round : int
            The round.
        least : int
            The number of members that a round needs. Members at work count among them: their
            replies are still to come. If too few members are not paused, the pauses are ignored; if
            the filters leave too few, so are they.
        awaited : int
            The number of members that have to be online before the round asks any.
        key : str
            The argument that asks for ``awaited`` members, for errors.
        at_work : collection of int
            The ids of the nodes that still train on an earlier round's model: they are not drawn.
        """
        online = self.directory.online(grid, awaited, key)
        free = self.failures.available(online, server_round, least)
        idle = [node for node in free if node.node_id not in at_work]
        num_at_work = len(free) - len(idle)
        admitted: Sequence[ClientNode] = idle
        for admit in self.admit:
            admitted = admit(admitted, server_round)
        if len(admitted) + num_at_work < least and len(admitted) < len(idle):
            logger.warning(
                "round %d: %d members are left out, but only %d others are there and %d are "
                "needed: they may be drawn as well",
                server_round,
                len(idle) - len(admitted),
                len(admitted) + num_at_work,
                least,
            )
            admitted = idle
        return Present(online, admitted)


class _LastOnline(NamedTuple):
    """The nodes that were online in the last round: their ids, and their descriptions."""

    node_ids: Sequence[int] = ()
    nodes: Sequence[ClientNode] = ()


class NodeDirectory:
    """The nodes seen so far, with their partitions, and which of them are online.

    A node is identified when it is first seen. If it does not say which partition it holds, it is
    asked again in later rounds, at most three times in all.

    Parameters
    ----------
    identify : callable, optional
        ``identify(grid, node_ids)`` returns who nodes are that are not known yet. ``None``:
        :func:`~fedif_flower.server.nodes.identify_unasked`, which sends no queries.
    timeout : float
        Seconds to wait for enough nodes.
    """

    def __init__(self, identify: Identify | None, timeout: float) -> None:
        self._identify = identify or identify_unasked
        self._timeout = timeout
        self._known: dict[int, ClientNode] = {}  # By node id.
        self._questions: Counter[int] = Counter()  # How often each node was asked who it is.
        # The nodes that claimed the same partition as another one, when `online` last looked.
        self._contested: set[int] = set()
        self._last_online = _LastOnline()

    @property
    def known(self) -> list[ClientNode]:
        """All nodes seen so far, in the order of their partitions."""
        return sorted(self._known.values())

    def meet(self, nodes: Iterable[ClientNode]) -> None:
        """Add nodes that were identified elsewhere, so that they are not asked again."""
        for node in nodes:
            self._known[node.node_id] = node

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: partition, attack and name by node id."""
        # Simulated nodes are left out: they have other ids in the next process.
        lasting = [node for node in self._known.values() if not node.is_simulated]
        return {"known": {node.node_id: _saved(node) for node in lasting}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._known = {node_id: _read(node_id, saved) for node_id, saved in state["known"].items()}
        self._last_online = _LastOnline()

    def online(
        self, grid: Grid, at_least: int, key: str = "min_available_nodes"
    ) -> Sequence[ClientNode]:
        """Wait until ``at_least`` nodes are online; return all that are, ordered by partition id.

        ``key`` and errors are those of :func:`~fedif_flower.server.nodes.wait_for_nodes`.
        """
        node_ids = wait_for_nodes(grid, at_least, self._timeout, key, self._known.values())
        if node_ids == self._last_online.node_ids:
            # The same nodes as in the last round: with a million members, this saves the work.
            return self._last_online.nodes
        unknown = [node_id for node_id in node_ids if self._is_unknown(node_id)]
        self._identify_nodes(grid, unknown)
        self._warn_of_successors(unknown, node_ids)
        online = self._claimed_once([self._known[node_id] for node_id in node_ids])
        online.sort(key=lambda node: (node.partition_id, node.node_id))
        if any(self._is_unknown(node_id) for node_id in unknown):
            self._last_online = _LastOnline()  # So that the next round asks the unknown ones again.
        else:
            self._last_online = _LastOnline(node_ids, online)
        return online

    def _identify_nodes(self, grid: Grid, node_ids: Sequence[int]) -> None:
        """Identify nodes, and remember them; a node that ``identify`` leaves out stays unknown."""
        self._questions.update(node_ids)
        identified: dict[int, ClientNode] = {}
        if node_ids:
            nodes = _require_nodes(self._identify(grid, node_ids))
            identified = {node.node_id: node for node in nodes}
        for node_id in node_ids:
            self._known[node_id] = identified.get(node_id) or ClientNode(UNKNOWN_PARTITION, node_id)

    def _warn_of_successors(self, new_ids: Sequence[int], online_ids: Sequence[int]) -> None:
        """Warn of new nodes that claim the partition of a node that is now offline.

        A node id is a member's identity, so that a new one begins without the old one's score.
        """
        new_nodes = [self._known[node_id] for node_id in new_ids]
        # A simulated node's identity is its partition: it keeps its score under another id.
        if all(node.is_simulated for node in new_nodes):
            return
        offline = self._known.keys() - online_ids
        held_before = {self._known[node_id].partition_id for node_id in offline}
        held_before.discard(UNKNOWN_PARTITION)
        successors = [node.label for node in new_nodes if node.partition_id in held_before]
        if successors:
            logger.warning(
                "new members: %s: each claims the partition of a node that is now offline, and "
                "does not get that node's score. A SuperNode stays the same member when it is "
                "started again if the SuperLink knows its key (--enable-supernode-auth)",
                enumerated(successors),
            )

    def labels(self, client_ids: Iterable[int]) -> dict[int, str]:
        """Return a name for each client id, known or not; all names are different."""
        names = {node.client_id: node.called for node in self._known.values()}
        labels = {}
        for client_id in client_ids:
            labels[client_id] = names.get(client_id) or called(client_id, UNKNOWN_PARTITION)
        return all_different(labels)

    def _claimed_once(self, nodes: Sequence[ClientNode]) -> list[ClientNode]:
        """Return the nodes; those that claim the same partition as another one get none."""
        claims = Counter(node.partition_id for node in nodes)
        claims[UNKNOWN_PARTITION] = 0
        contested_before = self._contested
        self._contested = set()
        settled: list[ClientNode] = []
        for node in nodes:
            if claims[node.partition_id] > 1:
                note = f"claims partition {node.partition_id}, and so does another node"
                node = replace(node, partition_id=UNKNOWN_PARTITION, note=note)
                self._contested.add(node.node_id)
                if node.node_id not in contested_before:
                    logger.warning("%s %s: neither gets it", node.label, note)
            settled.append(node)
        return settled

    def _is_unknown(self, node_id: int) -> bool:
        """Tell whether a node has to be identified, for the first time or once more."""
        node = self._known.get(node_id)
        if node is None:
            return True
        if self._identify is identify_unasked:
            return False
        is_silent = node.partition_id == UNKNOWN_PARTITION
        return is_silent and self._questions[node_id] < MOST_QUESTIONS


def _require_nodes(answer: object) -> list[ClientNode]:
    """Return what the user's ``identify`` answers; raise ConfigError if it is no list of nodes."""
    nodes: list[Any] = list(answer) if isinstance(answer, Iterable) else [answer]
    for node in nodes:
        is_node = isinstance(node, ClientNode)
        require(is_node, "identify(grid, node_ids)", answer, "a list of ClientNode")
    return nodes


def _saved(node: ClientNode) -> list[Any]:
    """Return what a checkpoint keeps about a node, besides its id."""
    return [node.partition_id, node.attack, node.name]


def _read(node_id: int, saved: Sequence[Any]) -> ClientNode:
    """Return the node for which :func:`_saved` returned ``saved``."""
    partition_id, attack, name = saved
    return ClientNode(partition_id, node_id, attack, name)
