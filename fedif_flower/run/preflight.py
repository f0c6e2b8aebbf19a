"""Before the first round: how many clients there are, and whether they can train at all."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode
from fedif_flower.messages.polling_grid import NODE_UNAVAILABLE
from fedif_flower.messages.preflight import (
    ADVICE,
    QUESTION,
    Finding,
    Status,
    clock_finding,
    read_findings,
)
from fedif_flower.messages.screened_grid import is_reliable
from fedif_flower.messages.text import enumerated, printable, reason_of
from fedif_flower.run.config import RunConfig, with_own_settings
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import RunContext, RunPart
from fedif_flower.server.nodes import (
    NODE_TIMEOUT,
    identify_by_query,
    is_simulated,
    other_number_simulated,
    simulated_nodes,
    wait_for_nodes,
)
from fedif_flower.server.roster import NodeDirectory
from fedif_flower.settings import AUTO, Scalar

logger = logging.getLogger(__name__)

KEY = "num-clients"
MOST = 2**31 - 1
PREFLIGHT_TIMEOUT = 300.0  # A member reads its data and trains one batch.


def read_config(
    grid: Grid, run_config: Mapping[str, Scalar], parts: Sequence[RunPart] | None = None
) -> RunConfig:
    """Parse a run config; ``num-clients = "auto"`` is the number of nodes that there are now.

    In a simulation these are all of its nodes. Elsewhere they are those online, as soon as there
    are two of them and enough for ``min-valid-replies``; nodes that come later are asked as well.

    Parameters
    ----------
    grid : Grid
        The way to the nodes.
    run_config : mapping of str to bool, int, float or str
        Values by key; a key that is not there has its default.
    parts : sequence of RunPart
        The parts of the run.

    Raises
    ------
    ConfigError
        Naming the key, its value and what is allowed.
    TrainingFailedError
        If too few nodes come online.
    """
    values = {**RunConfig.defaults(), **with_own_settings(run_config)}
    if values[KEY] != AUTO:
        return RunConfig.from_run_config(values, parts)
    # Every other mistake is an error before anyone is waited for.
    wanted = RunConfig.from_run_config({**values, KEY: MOST}, parts)
    if is_simulated(grid):
        found, which = len(simulated_nodes(grid)), "simulated"
        more = f'--federation-config "num-supernodes={max(100, 10 * found)}"'
    elif wanted.resume:
        raise ConfigError(
            f"{KEY} = 'auto' with resume = {wanted.resume!r}; allowed: the number of the run that "
            "is to go on, since other nodes may be online now"
        )
    else:
        replies = wanted.min_valid_replies
        enough = 1 if replies == 1 else math.ceil(replies / wanted.fraction_train - 1e-9)
        found = len(wait_for_nodes(grid, max(2, enough), NODE_TIMEOUT, KEY))
        which, more = "online now", "start SuperNodes before the run"
    config = RunConfig.from_run_config({**values, KEY: found}, parts)
    words = (KEY, found, which, config.clients_per_round, more)
    logger.info("%s = %d: the nodes that are %s, %d of them in a round; for more: %s", *words)
    return config


def with_free_folder(config: RunConfig) -> RunConfig:
    """Return a run's config with a folder in which no other run's results would be lost.

    A name of the run's own choice gets a number where it is taken: ``...-2``.

    Raises
    ------
    ConfigError
        If the name was given, and the folder holds a run, finished or stopped; or if the
        checkpoint to go on from is not there.
    """
    if config.resume not in ("", AUTO) and not Path(config.resume).expanduser().is_file():
        raise ConfigError(f"resume = {config.resume!r}: no such file; allowed: 'auto', or a path")
    if config.resume == AUTO and not config.run_dir.exists():
        logger.warning("resume = 'auto': %s is not there, so a new run begins", config.run_dir)
    if config.overwrite or config.resume or not (held := _held(config)):
        return config
    if config.run_name != config.auto_name:
        raise ConfigError(
            f"run-name = {config.run_name!r}: {config.run_dir} holds {held[0]}; allowed: "
            f"{held[1]}another run-name, or overwrite = true"
        )
    numbered = (config.replace(run_name=f"{config.auto_name}-{n}") for n in count(2))
    return next(other for other in numbered if not _held(other))


def _held(config: RunConfig) -> tuple[str, str] | None:
    """Return what a run's folder holds that would be lost, and how to go on with it, in words."""
    folder = RunFolder(config.run_dir)
    if folder.is_complete():
        return "a finished run", ""
    if folder.checkpoints.is_dir() and any(folder.checkpoints.iterdir()):
        return "a run that stopped", "resume = 'auto' to go on with it, "
    # It was killed before its first checkpoint; members may have receipts for its rounds.
    if folder.last_round():
        return "rounds of a run that stopped", "resume = 'auto' to begin again and keep these, "
    return None


def require_simulated(grid: Grid, config: RunConfig) -> None:
    """Raise ConfigError if another number of nodes is simulated than the run has clients."""
    if is_simulated(grid) and (found := len(simulated_nodes(grid))) != config.num_clients:
        raise other_number_simulated(found, config.num_clients, KEY)


def ask_members(grid: Grid, run: RunContext, directory: NodeDirectory) -> None:
    """Let each real node that is online check itself, and tell the log what it found.

    Parameters
    ----------
    grid : Grid
        The way to the nodes, screened.
    run : RunContext
        A run that goes on does so with whoever there is.
    directory : NodeDirectory
        Learns who they are: nobody is asked that a second time.

    Raises
    ------
    TrainingFailedError
        If a member cannot take part, and ``start-without`` does not say that the run begins all
        the same.
    """
    if is_reliable(run.grid) or is_simulated(run.grid):
        return
    config, replies = run.config, dict[int, tuple[float, Message]]()
    timeout, asked = min(PREFLIGHT_TIMEOUT, config.pace.timeout), time.time()
    nodes = identify_by_query(
        grid,
        sorted(grid.get_node_ids()),
        RecordDict({QUESTION: run.instructions}),
        timeout,
        lambda reply: replies.update({reply.metadata.src_node_id: (time.time(), reply)}),
    )
    unfit = []
    for node in nodes:
        found = _findings(replies.get(node.node_id), asked, timeout)
        _tell(node, found)
        failed = (one for one in found if one.status is Status.FAILED)
        unfit += [f"{node.label}: {one.check}: {one.words}" for one in islice(failed, 1)]
    directory.meet(node for node in nodes if node.partition_id != UNKNOWN_PARTITION)
    if unfit and run.checkpoint is None and config.start_without != "unfit":
        raise TrainingFailedError(
            f"{len(unfit)} of {len(nodes)} members cannot take part: {enumerated(unfit)}; "
            "start-without = 'unfit' begins all the same"
        )


def _findings(answer: tuple[float, Message] | None, asked: float, timeout: float) -> list[Finding]:
    """Return what a node's reply, and when it came, says of it."""
    if answer is None or (answer[1].has_error() and answer[1].error.code == NODE_UNAVAILABLE):
        return [Finding("node", Status.WARNING, f"no answer in {timeout:g} s")]
    came, reply = answer
    if reply.has_error():
        return [Finding("node", Status.FAILED, printable(reason_of(reply.error)))]
    found, clock = read_findings(reply.content)
    if clock is not None and math.isfinite(clock):
        # It was told at some time between question and answer.
        found.append(clock_finding(max(clock - came, 0.0) or min(clock - asked, 0.0)))
    return found


def _tell(node: ClientNode, found: Sequence[Finding]) -> None:
    """Log what a member found: a line, and one for each thing to be done."""
    well = ", ".join(f"{one.check}: {one.words}" for one in found if one.status is Status.OK)
    if well:
        logger.info("%s: %s", node.label, well)
    for one in found:
        if one.status is not Status.OK:
            words = (node.label, one.check, one.status, one.words, ADVICE[one.check])
            logger.warning("%s: %s %s: %s; to do: %s", *words)
