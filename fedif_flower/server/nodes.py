"""The nodes that are online: waiting for them, who they are, and the draw among them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode
from fedif_flower.messages.polling_grid import REPORT_SECONDS, label
from fedif_flower.messages.records import records_of
from fedif_flower.messages.screened_grid import is_reliable
from fedif_flower.messages.text import printable, reason_of
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)

# A node starts a process to answer a query; on a busy host that has taken over a minute. A node
# that is too slow is asked again in the next rounds. So a silent node delays a run by at most
# QUERY_TIMEOUT * MOST_QUESTIONS seconds in all.
QUERY_TIMEOUT = 60.0
MOST_QUESTIONS = 3
NODE_TIMEOUT = 600.0  # Seconds to wait for nodes that are not online yet.
_POLL_SECONDS = 0.1
_MOST_DRAWS = 1000  # How often `sample_independently` draws a round anew if it has too few clients.

# Returns who the nodes with these ids are.
Identify = Callable[[Grid, Sequence[int]], Iterable[ClientNode]]


def identify_by_registration(grid: Grid, node_ids: Sequence[int]) -> list[ClientNode]:
    """Return simulated nodes with their partitions, in whose order Flower registers them."""
    asked_for = set(node_ids)
    return [
        ClientNode(partition_id, node_id, is_simulated=True)
        for partition_id, node_id in enumerate(_ids_by_age(grid))
        if node_id in asked_for
    ]


def identify_by_query(
    grid: Grid,
    node_ids: Sequence[int],
    question: RecordDict | None = None,
    timeout: float = QUERY_TIMEOUT,
    on_reply: Callable[[Message], None] = lambda _: None,
) -> list[ClientNode]:
    """Ask each node which partition it holds, and return the nodes.

    A node that does not answer, or answers nonsense, has no partition. A node's name is the one
    that the operator gave it at registration.

    Parameters
    ----------
    grid : Grid
        The connection to the nodes.
    node_ids : sequence of int
        The nodes to ask.
    question : RecordDict, optional
        The content of the query; default: empty.
    timeout : float
        Seconds to wait for the answers.
    on_reply : callable
        Called with each reply of a node that was asked; it may be an error or nonsense.
    """
    content = RecordDict() if question is None else question
    messages = [
        Message(content=content, message_type=MessageType.QUERY, dst_node_id=node_id)
        for node_id in node_ids
    ]
    nodes = {node.node_id: node for node in nodes_by_name(grid, node_ids)}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        node = nodes.get(reply.metadata.src_node_id)
        if node is None:
            continue
        on_reply(reply)
        if reply.has_content():
            nodes[node.node_id] = _read_answer(node, reply.content)
        else:
            logger.warning("%s does not answer: %s", node.label, printable(reason_of(reply.error)))
    return list(nodes.values())


def nodes_by_name(grid: Grid, node_ids: Sequence[int]) -> list[ClientNode]:
    """Return nodes with the names that the operator gave them, and without a partition.

    In a simulation their names are "client 0", "client 1" ... in the order of registration.
    """
    names = {}
    if is_simulated(grid):
        for number, node_id in enumerate(_ids_by_age(grid)):
            names[node_id] = f"client {number}"
    else:
        for info in grid.get_nodes():
            if info.name:
                names[info.node_id] = info.name
    return [
        ClientNode(UNKNOWN_PARTITION, node_id, name=names.get(node_id, "")) for node_id in node_ids
    ]


def identify_unasked(grid: Grid, node_ids: Sequence[int]) -> list[ClientNode]:
    """Return who nodes are without asking them: a user's own client app need not answer queries.

    Simulated nodes get their partitions; others get the names that the operator gave them. In a
    simulation Flower draws new node ids in every run. If clients were known by these ids, neither
    the draws nor the scores of a run could be reproduced.
    """
    if is_simulated(grid):
        return identify_by_registration(grid, node_ids)
    return nodes_by_name(grid, node_ids)


def identify_clients(grid: Grid, node_ids: Sequence[int]) -> list[ClientNode]:
    """Return who nodes are: by registration order in a simulation, by asking them elsewhere."""
    if is_simulated(grid):
        return identify_by_registration(grid, node_ids)
    return identify_by_query(grid, node_ids)


def _ids_by_age(grid: Grid) -> list[int]:
    """Return the nodes' ids in the order in which they were registered."""
    infos = sorted(grid.get_nodes(), key=lambda info: info.registered_at)
    return [info.node_id for info in infos]


def is_simulated(grid: Grid) -> bool:
    """Return whether the nodes are simulated: partitions, not ids, then say who they are."""
    grid = _unwrapped(grid)
    return bool(getattr(grid, "simulated", _is_flowers_simulation(grid)))


def has_real_nodes(grid: Grid) -> bool:
    """Return whether a run's grid reaches nodes on other hosts, and no simulation of them."""
    return not (is_reliable(grid) or is_simulated(grid))


def wait_for_nodes(
    grid: Grid, at_least: int, timeout: float, key: str, known: Iterable[ClientNode] = ()
) -> list[int]:
    """Wait until enough nodes are online, and return the sorted ids of all that are.

    A wait is logged at once and every ten seconds. If there can never be ``at_least`` nodes (in a
    simulation, or in a grid whose ``most_nodes`` is smaller), it raises instead of waiting.

    Parameters
    ----------
    grid : Grid
        The connection to the nodes.
    at_least : int
        The number of nodes needed, >= 1.
    timeout : float
        Seconds to wait, >= 0.
    key : str
        The argument or setting that asks for ``at_least`` nodes, for errors.
    known : iterable of ClientNode
        Nodes of earlier rounds: the log names those that are not online.

    Raises
    ------
    ConfigError
        If there can never be so many nodes.
    TrainingFailedError
        If there are too few nodes when the time is over.
    """
    node_ids = sorted(grid.get_node_ids())
    if len(node_ids) >= at_least:
        return node_ids
    require_enough(grid, at_least, key)
    if is_simulated(grid):
        node_ids = simulated_nodes(grid, timeout)
        if len(node_ids) < at_least:
            raise other_number_simulated(len(node_ids), at_least, key)
        return node_ids
    started = due = time.monotonic()
    while len(node_ids) < at_least:
        now = time.monotonic()
        left = started + timeout - now
        count = f"{len(node_ids)} of {at_least} nodes are online"
        if left <= 0:
            raise TrainingFailedError(
                f"{count} after {timeout:g} s: start more SuperNodes, or set a lower {key}"
            )
        if now >= due:
            # A warning: Python prints it even in programs that configure no logging.
            who = _who_is_there(grid, known)
            logger.warning("%s%s; waiting for more, %.0f s at most", count, who, left)
            # From now on: after a slow answer of the SuperLink it would be told twice at once.
            due = now + REPORT_SECONDS
        time.sleep(_POLL_SECONDS)
        node_ids = sorted(grid.get_node_ids())
    return node_ids


def _who_is_there(grid: Grid, known: Iterable[ClientNode]) -> str:
    """Return words that name the nodes online, as far as they have names, and the missing ones."""
    online = {node.node_id: node.name for node in grid.get_nodes()}
    words = ""
    there = enumerated(label(node_id, name) for node_id, name in online.items() if name)
    if there:
        words += f": {there}"
    missing = enumerated(node.label for node in known if node.node_id not in online)
    if missing:
        words += f"; missing: {missing}"
    return words


def simulated_nodes(grid: Grid, timeout: float = NODE_TIMEOUT) -> list[int]:
    """Return the sorted ids of all simulated nodes, once all of them are registered.

    Flower registers the nodes while the ServerApp already runs, and delivers messages only when
    all are registered. So this function sends one node an empty query: once that is answered, in
    whatever way, all nodes are there.

    Raises
    ------
    TrainingFailedError
        If no node answers in time.
    """
    if not _is_flowers_simulation(_unwrapped(grid)):
        return sorted(grid.get_node_ids())  # This package's own simulations register all at once.
    deadline = time.monotonic() + timeout
    node_ids = list(grid.get_node_ids())
    while not node_ids and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        node_ids = list(grid.get_node_ids())
    questions = []
    if node_ids:
        question = Message(
            content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=node_ids[0]
        )
        questions.append(question)
    if not list(grid.send_and_receive(questions, timeout=timeout)):
        raise TrainingFailedError(f"no simulated node answered within {timeout:g} s")
    return sorted(grid.get_node_ids())


def most_nodes(grid: Grid) -> float:
    """Return how many nodes a grid can ever have online; infinity if the grid sets no limit."""
    return float(getattr(_unwrapped(grid), "most_nodes", math.inf))


def require_enough(grid: Grid, at_least: int, key: str) -> None:
    """Raise ConfigError if a grid can never have ``at_least`` nodes; ``key`` asks for so many."""
    most = most_nodes(grid)
    if most >= at_least:
        return
    if is_simulated(grid):
        raise other_number_simulated(int(most), at_least, key)
    raise ConfigError(
        f"{key} = {at_least}, but the grid has {most:g} nodes, and no more can come; allowed: at "
        f"most {most:g}, or a grid of more"
    )


def other_number_simulated(num_nodes: int, wanted: int, key: str) -> ConfigError:
    """Return the error that a simulation has fewer nodes than a setting wants, with both remedies.

    Parameters
    ----------
    num_nodes : int
        How many nodes are simulated.
    wanted : int
        How many the setting wants.
    key : str
        The setting.
    """
    return ConfigError(
        f"{key} = {wanted}, but {num_nodes} nodes are simulated: set {key} = {num_nodes}, or "
        f'simulate {wanted} nodes by --federation-config "num-supernodes={wanted}"'
    )


def _unwrapped(grid: Grid) -> Grid:
    """Return the innermost grid, to which the grids around it forward their calls."""
    while hasattr(grid, "inner"):
        grid = grid.inner
    return grid


def _is_flowers_simulation(grid: Grid) -> bool:
    """Return whether a grid is Flower's own for simulations.

    It is recognised by its class's name, since the class is private to Flower.
    """
    return any(kind.__name__ == "InMemoryGrid" for kind in type(grid).__mro__)


def _read_answer(node: ClientNode, content: RecordDict) -> ClientNode:
    """Return a node with the partition and attack of its answer; without, if that is unusable."""
    try:
        answer = records_of(content, ConfigRecord)["node"]
        partition_id = answer["partition-id"]
        attack = answer["attack"]
        # `type` and not isinstance: a bool is an int, too.
        if type(partition_id) is int and 0 <= partition_id < 2**31 and isinstance(attack, str):
            return replace(node, partition_id=partition_id, attack=attack)
        note = f"claims partition {partition_id!r:.40}"
    except Exception as error:  # a hostile answer must not stop the server
        note = f"unreadable answer to the query: {error!r:.100}"
    unknown = replace(node, note=note)
    logger.warning("%s: %s", unknown.label, unknown.note)
    return unknown


def sample_clients(
    nodes: Sequence[ClientNode],
    size: int,
    generator: np.random.Generator,
    probabilities: NDArray[np.float64] | None = None,
) -> list[ClientNode]:
    """Draw a round's clients without replacement; all nodes if there are no more than ``size``.

    Parameters
    ----------
    nodes : sequence of ClientNode
        The nodes that may be drawn, ordered by partition id.
    size : int
        How many to draw (see :func:`~fedif_flower.arithmetic.share_of`).
    generator : numpy.random.Generator
        A new generator for (purpose, seed, round), so that the draw can be reproduced.
    probabilities : ndarray, optional
        ``[len(nodes)]``, > 0, sums to 1; ``None``: uniform.

    Returns
    -------
    list of ClientNode
        The nodes drawn, in the order of ``nodes``.
    """
    most = min(size, len(nodes))
    chosen = generator.choice(len(nodes), size=most, replace=False, p=probabilities)
    return [nodes[index] for index in sorted(chosen)]


def sample_independently(
    nodes: Sequence[ClientNode], chance: float, least: int, generator: np.random.Generator
) -> list[ClientNode]:
    """Draw each client independently with probability ``chance``; draw anew while too few come.

    Parameters
    ----------
    nodes : sequence of ClientNode
        The nodes that may be drawn, ordered by partition id.
    chance : float
        The probability with which each client is drawn, in (0, 1].
    least : int
        How many clients a round needs; all take part if there are no more.
    generator : numpy.random.Generator
        A new generator for (purpose, seed, round), so that the draw can be reproduced.

    Returns
    -------
    list of ClientNode
        The nodes drawn, in the order of ``nodes``. If no draw reaches ``least`` clients, ``least``
        of them are drawn uniformly.
    """
    if len(nodes) <= least:
        return list(nodes)
    for _ in range(_MOST_DRAWS):
        tosses = generator.random(len(nodes))
        chosen = np.flatnonzero(tosses < chance).tolist()
        if len(chosen) >= least:
            return [nodes[index] for index in chosen]
    # If so many clients hardly ever come, a round that has enough has most likely exactly `least`.
    return sample_clients(nodes, least, generator)
