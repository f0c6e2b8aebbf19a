"""The clients that are online, and the choice of those that train in a round."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedif_flower.errors import TrainingFailedError
from fedif_flower.seeding import numpy_generator

logger = logging.getLogger(__name__)

UNKNOWN_PARTITION = -1
# A node starts a process to answer; on a busy host that has taken over a minute. Who was too slow
# is asked again in the next rounds, so that a silent node delays no run by more than both together.
QUERY_TIMEOUT = 60.0
MOST_QUESTIONS = 3
_POLL_SECONDS = 0.1


@dataclass(frozen=True, order=True)
class ClientNode:
    """One client as the server knows it, in the order in which replies are aggregated.

    Attributes
    ----------
    partition_id : int
        Which part of the data it holds; -1 if it has not said so.
    node_id : int
        Flower's id: every score is kept under it.
    attack : str
        What a node in a demo or test says of its own behaviour; empty: nothing said. Only ever
        used to mark clients in a report.
    """

    partition_id: int
    node_id: int
    attack: str = ""

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"partition {self.partition_id} (node {self.node_id})"


Identify = Callable[[Grid, Sequence[int]], Iterable[ClientNode]]


def identify_by_registration(grid: Grid, node_ids: Sequence[int]) -> list[ClientNode]:
    """Name simulated nodes: Flower registers them in the order of their partitions."""
    wanted = set(node_ids)
    infos = sorted(grid.get_nodes(), key=lambda info: info.registered_at)
    return [
        ClientNode(partition_id, info.node_id)
        for partition_id, info in enumerate(infos)
        if info.node_id in wanted
    ]


def identify_by_query(grid: Grid, node_ids: Sequence[int]) -> list[ClientNode]:
    """Ask each node which partition it holds; a node that answers nonsense stays unknown."""
    messages = [
        Message(content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=node_id)
        for node_id in node_ids
    ]
    nodes = {node_id: ClientNode(UNKNOWN_PARTITION, node_id) for node_id in node_ids}
    for reply in grid.send_and_receive(messages, timeout=QUERY_TIMEOUT):
        node_id = reply.metadata.src_node_id
        if node_id in nodes and reply.has_content():
            nodes[node_id] = _read_answer(node_id, reply.content)
    return list(nodes.values())


def identify_clients(grid: Grid, node_ids: Sequence[int]) -> list[ClientNode]:
    """Name nodes by registration order in a simulation, and by asking them elsewhere."""
    identify = identify_by_registration if is_simulated(grid) else identify_by_query
    return identify(grid, node_ids)


def is_simulated(grid: Grid) -> bool:
    """Return whether the nodes are simulated, so that only their partitions tell who they are."""
    # Imported here: it costs clients, who only read this file's constants, half a second.
    from flwr.superlink.grid import InMemoryGrid

    from fedif_flower.runtime.ray_grid import RayGrid

    while hasattr(grid, "inner"):  # It hands its calls on.
        grid = grid.inner
    return isinstance(grid, InMemoryGrid | RayGrid)


class NodeDirectory:
    """The nodes that are online, and their partitions; each node is asked at most three times.

    Parameters
    ----------
    identify : callable, optional
        ``identify(grid, node_ids)`` names nodes not known yet. ``None``: a node's id serves as
        its partition id.
    timeout : float
        Seconds to wait for enough nodes.
    """

    def __init__(self, identify: Identify | None, timeout: float) -> None:
        self._identify = identify
        self._timeout = timeout
        self._known: dict[int, ClientNode] = {}
        self._questions: Counter[int] = Counter()

    @property
    def known(self) -> list[ClientNode]:
        """Every node ever seen."""
        return sorted(self._known.values())

    def successors(self, nodes: Iterable[ClientNode]) -> dict[int, int]:
        """Return, by the ids of known nodes, the ids of those that now hold their partitions."""
        now = {node.partition_id: node.node_id for node in nodes}
        return {
            node.node_id: now[node.partition_id]
            for node in self._known.values()
            if node.partition_id in now
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on: partition and attack by node id."""
        return {"known": {n.node_id: [n.partition_id, n.attack] for n in self._known.values()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._known = {
            node_id: ClientNode(partition_id, node_id, attack)
            for node_id, (partition_id, attack) in state["known"].items()
        }

    def online(self, grid: Grid, at_least: int) -> list[ClientNode]:
        """Wait until ``at_least`` nodes are online; return them ordered by partition id.

        Raises
        ------
        TrainingFailedError
            If there are too few when the time is over.
        """
        deadline = time.monotonic() + self._timeout
        while len(node_ids := sorted(grid.get_node_ids())) < at_least:
            if time.monotonic() > deadline:
                raise TrainingFailedError(
                    f"{len(node_ids)} nodes online after {self._timeout:g} s, {at_least} needed"
                )
            time.sleep(_POLL_SECONDS)
        unknown = [node_id for node_id in node_ids if self._is_unknown(node_id)]
        if unknown and self._identify is not None:
            self._questions.update(unknown)
            self._known.update((n.node_id, n) for n in self._identify(grid, unknown))
        for node_id in unknown:
            self._known.setdefault(node_id, ClientNode(node_id, node_id))
        return sorted(self._known[node_id] for node_id in node_ids)

    def _is_unknown(self, node_id: int) -> bool:
        node = self._known.get(node_id)
        silent = node is not None and node.partition_id == UNKNOWN_PARTITION
        return node is None or (silent and self._questions[node_id] < MOST_QUESTIONS)


def sample_clients(
    nodes: Sequence[ClientNode],
    fraction: float,
    minimum: int,
    seed: int,
    server_round: int,
    probabilities: NDArray[np.float64] | None = None,
) -> list[ClientNode]:
    """Draw a round's clients, without replacement, from (seed, round) alone.

    Parameters
    ----------
    nodes : sequence of ClientNode
        Who is online, ordered by partition id.
    fraction : float
        Share of them to draw, in (0, 1].
    minimum : int
        Draw at least this many.
    seed, server_round : int
        What the draw depends on.
    probabilities : ndarray, optional
        ``[len(nodes)]``, > 0, sums to 1; ``None``: uniform.
    """
    # 0.29 * 100 is 28.999...: the share is meant, not its rounding error.
    size = min(max(int(fraction * len(nodes) + 1e-9), minimum), len(nodes))
    generator = numpy_generator("sample-clients", seed, server_round)
    chosen = generator.choice(len(nodes), size=size, replace=False, p=probabilities)
    return [nodes[index] for index in sorted(chosen)]


def _read_answer(node_id: int, content: RecordDict) -> ClientNode:
    try:
        answer = content.config_records["node"]
        partition_id, attack = answer["partition-id"], answer["attack"]
        if isinstance(partition_id, int) and 0 <= partition_id < 2**31 and isinstance(attack, str):
            return ClientNode(partition_id, node_id, attack[:40])
    except Exception as error:  # a hostile answer must not stop the server
        logger.warning("node %d: unreadable answer to the query: %r", node_id, error)
    return ClientNode(UNKNOWN_PARTITION, node_id)
