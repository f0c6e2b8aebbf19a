"""One federation on the server: its parts are built, its rounds run, its records finished."""

from __future__ import annotations

import logging
import math
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from flwr.serverapp import Grid

from fedif_flower.attacks.assignment import malicious_partitions
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from fedif_flower.messages.screened_grid import screened
from fedif_flower.run.checkpoint import Checkpoint, CheckpointFolder
from fedif_flower.run.config import RunConfig
from fedif_flower.run.figures import troubles
from fedif_flower.run.folder import RunFolder, hold_directory
from fedif_flower.run.loaded_task import LoadedTask, load_task
from fedif_flower.run.logs import about
from fedif_flower.run.outside_code import modules_of
from fedif_flower.run.part import RunContext, RunPart
from fedif_flower.run.parts import run_parts
from fedif_flower.run.preflight import (
    KEY,
    ask_members,
    require_fit_for_simulation,
    with_free_folder,
)
from fedif_flower.run.provenance import RUN_ID
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.run.strategy import build_strategy
from fedif_flower.run.writer import OnRow
from fedif_flower.server.nodes import NODE_TIMEOUT, wait_for_nodes
from fedif_flower.server.run import Callback
from fedif_flower.server.setup import require_callbacks
from fedif_flower.settings import Scalar
from fedif_flower.tasks.task import Task

logger = logging.getLogger(__name__)


def run_federation(
    grid: Grid,
    config: RunConfig,
    on_row: OnRow | None = None,
    callbacks: Sequence[Callback] = (),
    task: Task | None = None,
    loaded: LoadedTask | None = None,
    parts: Sequence[RunPart] | None = None,
    run_config: Mapping[str, Scalar] | None = None,
) -> Path:
    """Run one federation to its end and return the directory of its results.

    Parameters
    ----------
    grid : Grid
        Flower's way to the clients.
    config : RunConfig
        The settings of the run.
    on_row : callable, optional
        Called with each :class:`~fedif_flower.server.record.Round` once its line of ``rounds.csv``
        is written.
    callbacks : sequence of Callback
        They are told of each round and model after the run's own recorder and parts: to draw
        curves, to stop early ...
    task : Task, optional
        The task; ``None``: the run config names one.
    loaded : LoadedTask, optional
        The task with its data, if it has been loaded for this run already.
    parts : sequence of RunPart, optional
        What the run can have beside its records; ``None``: the library's own parts.
    run_config : mapping of str to bool, int, float or str, optional
        The run config as Flower gives it to both sides of an app, so that members can recognise
        the run by it. ``None``: the values of ``config``.

    Raises
    ------
    StorageError
        If another run writes to the same directory, or the disk is full.
    ConfigError
        If a setting is wrong or does not fit the nodes, the data or another setting, or if the
        directory holds a run that would be lost (see
        :func:`~fedif_flower.run.preflight.with_free_folder`).
    FedIFError
        If anything else stops the run.
    """
    # An error before the folder is held leaves no folder behind.
    if parts is None:
        parts = run_parts()
    callbacks = require_callbacks(callbacks)
    config.require_heard(parts)
    for part in parts:
        part.fits(config)
    require_fit_for_simulation(grid, config)
    loaded = loaded or load_task(with_free_folder(config), task)
    why_nobody = why_nobody_attacks(loaded.config)
    if why_nobody:
        logger.warning(why_nobody)
    folder = RunFolder(loaded.config.run_dir)
    with about(run=folder.path.name), hold_directory(folder.path), ExitStack() as stack:
        logger.info("Results: %s", folder.path)
        checkpoints = CheckpointFolder(folder.checkpoints, identity_of(loaded, task))
        checkpoint = checkpoints.find(loaded.config.resume)
        if run_config is None:
            run_config = loaded.config.to_mapping()
        run = RunContext(
            loaded,
            grid,
            folder,
            run_id=_run_id(checkpoint),
            checkpoint=checkpoint,
            run_config=run_config,
            stack=stack,
            modules=modules_of(loaded.config, task, parts),
        )
        for part in parts:
            run.add(part.build(run))
        grid = _wired(grid, run)
        strategy = build_strategy(run.loaded, run.setup)
        for part in parts:
            part.refuse(strategy, run)
        if checkpoint is None:  # A resumed run does not wait for members that are gone.
            wait_for_nodes(grid, loaded.config.num_clients, NODE_TIMEOUT, KEY)
        # Real nodes say who they are, and check themselves, before the strategy starts.
        ask_members(grid, run, strategy.nodes)
        recorder = RunRecorder(run, strategy, checkpoints, on_row)
        _run_rounds(grid, run, recorder, callbacks)
    for part in parts:
        part.finished(run)
    return folder.path


def why_nobody_attacks(config: RunConfig) -> str:
    """Return a warning if the share of malicious clients rounds to no client; else an empty text.

    It is empty, too, where no attack or a share of 0 is set.
    """
    fraction = config.malicious_fraction
    attackers = malicious_partitions(config.num_clients, fraction, config.seed)
    if config.attack == "none" or not fraction or attackers:
        return ""
    count = config.num_clients
    return f"malicious-fraction = {fraction:g} rounds to 0 of {count} clients, so no client attacks"


def identity_of(loaded: LoadedTask, task: Task | None = None) -> dict[str, Scalar]:
    """Return all that can change a result: settings, data, and code from outside this package.

    A run can be resumed only from a checkpoint with the same identity.
    """
    identity = {**loaded.config.identity(), "data": loaded.fingerprint}
    for name, digest in modules_of(loaded.config, task).items():
        identity[f"code of {name}"] = digest[:12]
    return identity


def _run_id(checkpoint: Checkpoint | None) -> str:
    """Return the id under which members know the run; a resumed run keeps the checkpoint's."""
    earlier = None
    if checkpoint is not None:
        earlier = checkpoint.records.get(RUN_ID)
    return str(earlier or secrets.token_hex(16))


def _wired(grid: Grid, run: RunContext) -> Grid:
    """Return the way to the clients through the wires of all parts, with replies screened last."""
    for built in run.built:
        for wire in built.wires:
            grid = wire(grid)
    return screened(grid)


def _run_rounds(
    grid: Grid,
    run: RunContext,
    recorder: RunRecorder,
    callbacks: Sequence[Callback],
) -> None:
    """Begin or resume the run, run the rounds that are left, and finish the records."""
    strategy = recorder.strategy
    arrays = model_arrays(run.loaded.model)
    _require_space(run, model_bytes=sum(len(array.data) for array in arrays.values()))
    if run.checkpoint is not None:
        arrays = recorder.restore(run.checkpoint, grid)
    # The recorder comes first: its evaluation may take a model back, and later callbacks are to
    # look at the model that stays.
    strategy.callbacks += [recorder, *run.callbacks, *callbacks]
    try:
        result = strategy.start(
            grid=grid,
            initial_arrays=arrays,
            num_rounds=recorder.rounds_left,
            timeout=run.config.pace.timeout,
            train_config=run.instructions,
        )
    except BaseException as error:
        recorder.stopped(error)
        raise
    summary = recorder.finish(result.arrays.to_torch_state_dict())
    for trouble, count in troubles(summary):
        logger.warning("%s: %s", trouble, count)


def _require_space(run: RunContext, model_bytes: int) -> None:
    """Raise ConfigError if the disk has too little room for what the run will write."""
    copies = 1  # For model.pt.
    if run.config.checkpoint_every:
        copies += 6  # For two checkpoints, and a third while it is written, of two models each.
    copies += sum(built.copies for built in run.built)
    needed = copies * model_bytes + 2**20  # A mebibyte for tables, report and pictures.
    free = shutil.disk_usage(run.folder.path).free
    if free < needed:
        # Rounded down and up: two figures that are close could else read as if there was room.
        free_mib = math.floor(10 * free / 2**20) / 10
        needed_mib = math.ceil(10 * needed / 2**20) / 10
        raise ConfigError(
            f"output-dir = {run.config.output_dir!r}: {free_mib:.1f} MiB free, but the model, "
            f"its checkpoints and what is kept of rounds need {needed_mib:.1f} MiB"
        )
