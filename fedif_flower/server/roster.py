"""Who can be asked in a round: known, online, not paused, not at work, not barred."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flwr.serverapp import Grid

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

# Returns those of the nodes that may be drawn in a round.
Admit = Callable[[Sequence[ClientNode], int], Sequence[ClientNode]]


@dataclass(frozen=True)
class Present:
    """Who is there as a round begins.

    Attributes
    ----------
    online : sequence of ClientNode
        Everybody who could be reached.
    candidates : sequence of ClientNode
        Those of them that may be drawn.
    """

    online: Sequence[ClientNode]
    candidates: Sequence[ClientNode]


class Roster:
    """The members of a federation, and who of them may be drawn in a round.

    Parameters
    ----------
    directory : NodeDirectory
        Knows who is online, and which partition each holds.
    failures : MemberFailures
        Knows who is paused after errors.

    Attributes
    ----------
    admit : list of callable
        Each takes nodes and the round, and returns those of them that may be drawn; they are asked
        in their order. A callback that bars members adds to it in its ``on_start``.
    """

    def __init__(self, directory: NodeDirectory, failures: MemberFailures) -> None:
        self.directory = directory
        self.failures = failures
        self.admit: list[Admit] = []

    def begin(self) -> None:
        """Bar nobody, as a run begins."""
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
        """Wait until enough members are there, and return who may be drawn.

        Parameters
        ----------
        grid : Grid
            The way to the members.
        server_round : int
            The round.
        least : int
            How many a round needs: where fewer are admitted, all that are idle may be drawn.
        awaited : int
            How many have to be online before anybody is asked.
        key : str
            The argument that asks for so many, for errors.
        at_work : collection of int
            The nodes that still train on an earlier round's model.
        """
        online = self.directory.online(grid, awaited, key)
        free = self.failures.available(online, server_round, least)
        idle = [node for node in free if node.node_id not in at_work]
        admitted: Sequence[ClientNode] = idle
        for admit in self.admit:
            admitted = admit(admitted, server_round)
        if len(admitted) < least and len(admitted) < len(idle):
            logger.warning(
                "round %d: %d members are left out, but only %d others are free and %d are needed: "
                "they may be drawn as well",
                server_round,
                len(idle) - len(admitted),
                len(admitted),
                least,
            )
            admitted = idle
        return Present(online, admitted)


class _LastOnline(NamedTuple):
    """The nodes that were online in the last round: their ids, and who they are."""

    node_ids: Sequence[int] = ()
    nodes: Sequence[ClientNode] = ()


class NodeDirectory:
    """The nodes that are online, and their partitions; each node is asked at most three times.

    Parameters
    ----------
    identify : callable, optional
        ``identify(grid, node_ids)`` names nodes not known yet. ``None``: nobody is asked which
        partition it holds (:func:`identify_unasked`).
    timeout : float
        Seconds to wait for enough nodes.
    """

    def __init__(self, identify: Identify | None, timeout: float) -> None:
        self._identify = identify or identify_unasked
        self._timeout = timeout
        self._known: dict[int, ClientNode] = {}
        self._questions: Counter[int] = Counter()
        self._contested: set[int] = set()
        self._last_online = _LastOnline()

    @property
    def known(self) -> list[ClientNode]:
        """Every node ever seen."""
        return sorted(self._known.values())

    def meet(self, nodes: Iterable[ClientNode]) -> None:
        """Know nodes that were asked already: they are not asked again."""
        for node in nodes:
            self._known[node.node_id] = node

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on: partition, attack and name by lasting node id."""
        # A simulation gives its nodes other ids in the next process.
        lasting = [node for node in self._known.values() if not node.is_simulated]
        return {"known": {node.node_id: _saved(node) for node in lasting}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._known = {node_id: _read(node_id, saved) for node_id, saved in state["known"].items()}
        self._last_online = _LastOnline()

    def online(
        self, grid: Grid, at_least: int, key: str = "min_available_nodes"
    ) -> Sequence[ClientNode]:
        """Wait until ``at_least`` nodes are online; return all ordered by partition id.

        ``key`` and errors are those of :func:`wait_for_nodes`.
        """
        node_ids = wait_for_nodes(grid, at_least, self._timeout, key, self._known.values())
        if node_ids == self._last_online.node_ids:
            # Of a million members that are still the same ones nothing is found out again.
            return self._last_online.nodes
        unknown = [node_id for node_id in node_ids if self._is_unknown(node_id)]
        self._identify_nodes(grid, unknown)
        self._warn_of_successors(unknown, node_ids)
        online = self._claimed_once([self._known[node_id] for node_id in node_ids])
        online.sort(key=lambda node: (node.partition_id, node.node_id))
        if any(self._is_unknown(node_id) for node_id in unknown):
            self._last_online = _LastOnline()  # They are asked again.
        else:
            self._last_online = _LastOnline(node_ids, online)
        return online

    def _identify_nodes(self, grid: Grid, node_ids: Sequence[int]) -> None:
        """Find out who nodes are; one that nobody names stays unknown."""
        self._questions.update(node_ids)
        identified: dict[int, ClientNode] = {}
        if node_ids:
            identified = {node.node_id: node for node in self._identify(grid, node_ids)}
        for node_id in node_ids:
            self._known[node_id] = identified.get(node_id) or ClientNode(UNKNOWN_PARTITION, node_id)

    def _warn_of_successors(self, new_ids: Sequence[int], online_ids: Sequence[int]) -> None:
        """Warn of nodes that say they hold what one that is offline held: they begin anew."""
        new_nodes = [self._known[node_id] for node_id in new_ids]
        if all(node.is_simulated for node in new_nodes):  # Their partitions are who they are.
            return
        offline = self._known.keys() - online_ids
        held_before = {self._known[node_id].partition_id for node_id in offline}
        held_before.discard(UNKNOWN_PARTITION)
        successors = [node.label for node in new_nodes if node.partition_id in held_before]
        if successors:
            logger.warning(
                "new members: %s: each holds what a node that is offline held, and begins without "
                "its score. A SuperNode stays the same member when it is started again if the "
                "SuperLink knows its key (--enable-supernode-auth)",
                enumerated(successors),
            )

    def labels(self, client_ids: Iterable[int]) -> dict[int, str]:
        """Return what clients are called, known or not, by their ids; all different."""
        names = {node.client_id: node.called for node in self._known.values()}
        labels = {}
        for client_id in client_ids:
            labels[client_id] = names.get(client_id) or called(client_id, UNKNOWN_PARTITION)
        return all_different(labels)

    def _claimed_once(self, nodes: Sequence[ClientNode]) -> list[ClientNode]:
        """Give a partition that several nodes claim to none of them."""
        claims = Counter(node.partition_id for node in nodes)
        claims[UNKNOWN_PARTITION] = 0
        contested_before = self._contested
        self._contested = set()
        settled: list[ClientNode] = []
        for node in nodes:
            if claims[node.partition_id] > 1:
                note = f"claims partition {node.partition_id}, as another node does"
                node = replace(node, partition_id=UNKNOWN_PARTITION, note=note)
                self._contested.add(node.node_id)
                if node.node_id not in contested_before:
                    logger.warning("%s %s: neither has it", node.label, note)
            settled.append(node)
        return settled

    def _is_unknown(self, node_id: int) -> bool:
        """Tell whether a node has to be identified, once more if it has not said who it is."""
        node = self._known.get(node_id)
        if node is None:
            return True
        if self._identify is identify_unasked:
            return False
        is_silent = node.partition_id == UNKNOWN_PARTITION
        return is_silent and self._questions[node_id] < MOST_QUESTIONS


def _saved(node: ClientNode) -> list[Any]:
    """Return what a checkpoint keeps of a node, beside its id."""
    return [node.partition_id, node.attack, node.name]


def _read(node_id: int, saved: Sequence[Any]) -> ClientNode:
    """Return a node of which a checkpoint keeps what :func:`_saved` returned."""
    partition_id, attack, name = saved
    return ClientNode(partition_id, node_id, attack, name)
