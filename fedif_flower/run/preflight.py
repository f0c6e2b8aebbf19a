"""Checks before the first round: the number of clients, a free folder, and members' own checks."""

from __future__ import annotations

import logging
import math
import re
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError, TrainingFailedError, require
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode
from fedif_flower.messages.polling_grid import NODE_UNAVAILABLE
from fedif_flower.messages.preflight import (
    ADVICE,
    QUESTION,
    Finding,
    Status,
    clock_finding,
    read_findings,
    seconds_ahead,
)
from fedif_flower.messages.text import printable, reason_of
from fedif_flower.run.checkpoint import lies_in
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder, hold_directory, is_held
from fedif_flower.run.part import RunContext, RunPart
from fedif_flower.server.nodes import (
    NODE_TIMEOUT,
    has_real_nodes,
    identify_by_query,
    is_simulated,
    other_number_simulated,
    simulated_nodes,
    wait_for_nodes,
)
from fedif_flower.server.roster import NodeDirectory
from fedif_flower.settings import AUTO, Scalar
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)

KEY = "num-clients"
MOST = 2**31 - 1  # The largest number of clients.
PREFLIGHT_TIMEOUT = 300.0  # Seconds; a member reads its data and trains one batch in this time.


def read_config_and_count_nodes(
    grid: Grid, run_config: Mapping[str, Scalar], parts: Sequence[RunPart] | None = None
) -> RunConfig:
    """Parse a run config; ``num-clients = "auto"`` becomes the number of nodes that there are now.

    In a simulation that is the number of its nodes. Elsewhere it is the number of nodes online, as
    soon as there are two and enough for ``min-valid-replies``; nodes that come later are asked as
    well.

    Parameters
    ----------
    grid : Grid
        The way to the nodes.
    run_config : mapping of str to bool, int, float or str
        Values by key, as Flower hands them over; a key that is not there has its default.
    parts : sequence of RunPart, optional
        The parts that the run can have; ``None``: as
        :meth:`~fedif_flower.run.config.RunConfig.from_run_config` takes it.

    Raises
    ------
    ConfigError
        If a setting is wrong; the error names the key, its value and what is allowed.
    TrainingFailedError
        If too few nodes come online.
    """
    if run_config.get(KEY, AUTO) != AUTO:
        return RunConfig.from_flower(run_config, parts)
    # With any number, so that every other mistake is an error before nodes are waited for.
    settings = RunConfig.from_flower({**run_config, KEY: MOST}, parts)
    if is_simulated(grid):
        num_nodes = len(simulated_nodes(grid))
        whereabouts = "simulated nodes"
        remedy = f'--federation-config "num-supernodes={max(100, 10 * num_nodes)}"'
    elif settings.resume:
        raise ConfigError(
            f"{KEY} = 'auto' with resume = {settings.resume!r}; allowed: the number of the run "
            "that is to go on, since other nodes may be online now"
        )
    else:
        num_nodes = len(wait_for_nodes(grid, _fewest_nodes(settings), NODE_TIMEOUT, KEY))
        whereabouts = "nodes online now"
        remedy = "start SuperNodes before the run"
    config = RunConfig.from_flower({**run_config, KEY: num_nodes}, parts)
    logger.info(
        "%s = %d, the number of %s; each round asks %d of them; for more clients: %s",
        KEY,
        num_nodes,
        whereabouts,
        config.num_drawn,
        remedy,
    )
    return config


def _fewest_nodes(config: RunConfig) -> int:
    """Return with how many real nodes a run with ``num-clients = "auto"`` may begin, 2 or more."""
    pace = config.pace.pace()

    def are_enough(num_nodes: int) -> bool:
        """Whether a round among so many nodes asks enough of them for the replies that it needs."""
        drawn = config.num_drawn_of(num_nodes)
        return drawn >= pace.quorum and pace.fewest_replies(drawn) >= config.min_valid_replies

    # A binary search for the first number that is enough, in place of a formula for it.
    return 2 + bisect_left(range(2, MOST), True, key=are_enough)


def with_free_folder(config: RunConfig) -> RunConfig:
    """Return a run's config with a folder in which no other run's results would be lost.

    If ``run-name`` is ``"auto"`` and another run has the name already, a number is added: ``-2``.

    Raises
    ------
    ConfigError
        If the user gave the name, and the folder holds a run, finished or stopped, that is not the
        one to resume; or if the checkpoint to resume from is not there.
    StorageError
        If the user gave the name, and a run is going on in the folder.
    """
    if config.resume not in ("", AUTO) and not Path(config.resume).expanduser().is_file():
        raise ConfigError(f"resume = {config.resume!r}: no such file; allowed: 'auto', or a path")
    if config.resume == AUTO:
        config = _with_name_of_attempt(config)
        if not config.run_dir.exists():
            logger.warning("resume = 'auto': %s is not there, so a new run begins", config.run_dir)
    if config.overwrite:
        return config
    earlier = _earlier_run(config)
    if earlier is None:
        return config
    if config.run_name != config.auto_name:
        with hold_directory(config.run_dir):
            pass  # Only to raise an error that names the process, if a run is going on there.
        lost_run, allowed = earlier
        raise ConfigError(
            f"run-name = {config.run_name!r}: {config.run_dir} holds {lost_run}; allowed: {allowed}"
        )
    number = 2
    while True:
        numbered = config.replace(run_name=f"{config.auto_name}-{number}")
        if _earlier_run(numbered) is None:
            return numbered
        number += 1


def _with_name_of_attempt(config: RunConfig) -> RunConfig:
    """Return a config with the name of the run to resume, which may have a number at its end.

    Of several runs with these settings, the last one that stopped is resumed; if all are complete,
    the last one.
    """
    if config.run_name != config.auto_name:
        return config
    names = {1: config.auto_name}
    if config.run_dir.parent.is_dir():
        for folder in config.run_dir.parent.iterdir():
            numbered = re.fullmatch(re.escape(config.auto_name) + r"-([1-9]\d*)", folder.name)
            if numbered:
                names[int(numbered[1])] = folder.name
    attempts = [config.replace(run_name=names[number]) for number in sorted(names)]
    begun = [attempt for attempt in attempts if attempt.run_dir.is_dir()]
    stopped = [attempt for attempt in begun if not RunFolder(attempt.run_dir).is_complete()]
    if stopped:
        return stopped[-1]
    if begun:
        return begun[-1]
    return attempts[-1]


def _earlier_run(config: RunConfig) -> tuple[str, str] | None:
    """Return the run that would be lost in a run's folder, and what to set instead, in words.

    ``None``: no run would be lost, since there is none or since it is the run to resume.
    """
    folder = RunFolder(config.run_dir)
    if config.resume == AUTO or lies_in(folder.checkpoints, config.resume):
        return None
    others = "another run-name, or overwrite = true"
    if is_held(folder.path):
        return "a run that is going on", others
    if folder.is_complete():
        return "a finished run", others
    if folder.checkpoints.is_dir() and any(folder.checkpoints.iterdir()):
        return "a run that stopped", f"resume = 'auto' to go on with it, {others}"
    # The run was killed before its first checkpoint, but members may have receipts for its rounds.
    if folder.last_round():
        words = f"resume = 'auto' to begin again and keep these, {others}"
        return "rounds of a run that stopped", words
    return None


def require_fit_for_simulation(grid: Grid, config: RunConfig) -> None:
    """Raise ConfigError if a simulation cannot run these settings; real nodes are not checked.

    It cannot if the number of its nodes is not the run's number of clients, or if the run waits for
    late replies.
    """
    if not is_simulated(grid):
        return
    require_never_late(config)
    num_nodes = len(simulated_nodes(grid))
    if num_nodes != config.num_clients:
        raise other_number_simulated(num_nodes, config.num_clients, KEY)


def require_never_late(config: RunConfig) -> None:
    """Raise ConfigError if the run waits for late replies, of which a simulation has none."""
    pace = config.pace
    synchronous = "'synchronous' in a simulation, whose replies are never late"
    require(not pace.is_buffered, "pace.rounds", pace.rounds, synchronous)
    never_late = "0 in a simulation, whose replies are never late"
    require(not pace.late_rounds, "pace.late-rounds", pace.late_rounds, never_late)


def ask_members(grid: Grid, run: RunContext, directory: NodeDirectory) -> None:
    """Let each real node that is online check itself, and log what it finds.

    Parameters
    ----------
    grid : Grid
        The way to the nodes, on which replies are screened.
    run : RunContext
        The run. If it is resumed, a member that cannot take part does not stop it.
    directory : NodeDirectory
        It learns which node holds which partition, so that no node is asked that again.

    Raises
    ------
    TrainingFailedError
        If a member cannot take part in a new run, unless ``start-without`` is ``"unfit"``.
    """
    if not has_real_nodes(run.grid):
        return
    timeout = min(PREFLIGHT_TIMEOUT, run.config.pace.timeout)
    asked_at = time.time()
    answers: dict[int, _Answer] = {}

    def take(reply: Message) -> None:
        answers[reply.metadata.src_node_id] = _Answer(reply, asked_at, time.time())

    nodes = identify_by_query(
        grid,
        sorted(grid.get_node_ids()),
        RecordDict({QUESTION: run.instructions}),
        timeout,
        take,
    )
    unfit = []
    for node in nodes:
        findings = _findings(answers.get(node.node_id), timeout)
        _log_findings(node, findings)
        failed = [finding for finding in findings if finding.status is Status.FAILED]
        if failed:
            # The error has one reason for each member; the log has all of them.
            first = failed[0]
            unfit.append(f"{node.label}: {first.check}: {first.words}")
    directory.meet(node for node in nodes if node.partition_id != UNKNOWN_PARTITION)
    if unfit and run.checkpoint is None and run.config.start_without != "unfit":
        raise TrainingFailedError(
            f"{len(unfit)} of {len(nodes)} members cannot take part: {enumerated(unfit)}; "
            "start-without = 'unfit' begins all the same"
        )


class _Answer(NamedTuple):
    """A node's reply, and the times when it was asked and when the reply came, in Unix seconds."""

    reply: Message
    asked_at: float
    came_at: float


def _findings(answer: _Answer | None, timeout: float) -> list[Finding]:
    """Return a node's findings about itself; ``answer`` is ``None`` if none came in time."""
    if answer is None:
        return [Finding("node", Status.WARNING, f"no answer in {timeout:g} s")]
    reply = answer.reply
    if reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
        words = f"no answer: {printable(reason_of(reply.error))}"
        return [Finding("node", Status.WARNING, words)]
    if reply.has_error():
        return [Finding("node", Status.FAILED, printable(reason_of(reply.error)))]
    findings, clock = read_findings(reply.content)
    if clock is not None and math.isfinite(clock):
        # The member read its clock at an unknown time between question and answer.
        ahead = seconds_ahead((clock, clock), (answer.asked_at, answer.came_at))
        findings.append(clock_finding(ahead))
    return findings


def _log_findings(node: ClientNode, findings: Sequence[Finding]) -> None:
    """Log a member's findings: one line for all that is well, and one for each thing to be done."""
    well = [finding for finding in findings if finding.status is Status.OK]
    if well:
        words = ", ".join(f"{finding.check}: {finding.words}" for finding in well)
        logger.info("%s: %s", node.label, words)
    for finding in findings:
        if finding.status is not Status.OK:
            logger.warning(
                "%s: %s %s: %s; to do: %s",
                node.label,
                finding.check,
                finding.status,
                finding.words,
                ADVICE[finding.check],
            )
