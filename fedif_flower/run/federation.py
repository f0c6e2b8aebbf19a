"""One federation on the server: data, model, strategy, rounds, report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from flwr.serverapp import Grid

from fedif_flower.attacks import malicious_partitions
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import instructions
from fedif_flower.messages.models import model_arrays
from fedif_flower.messages.screened_grid import screened
from fedif_flower.run.attribution import RecordedAttribution
from fedif_flower.run.checkpoint import CheckpointFolder
from fedif_flower.run.collusion import ColludingGrid, needs_collusion
from fedif_flower.run.config import RunConfig
from fedif_flower.run.evaluation import ServerEvaluation
from fedif_flower.run.lock import hold_directory
from fedif_flower.run.nodes import require_simulated, wait_for_clients
from fedif_flower.run.preflight import try_clients
from fedif_flower.run.provenance import PROVENANCE, provenance
from fedif_flower.run.quarantine import RecordedQuarantine
from fedif_flower.run.recorder import RunRecorder, write_json
from fedif_flower.run.report import troubles, write_report
from fedif_flower.run.resume import ResumableRun, require_space
from fedif_flower.run.secret_validation import COMMITMENT, NONCE, paying_part, salt_for
from fedif_flower.run.server import Server, build_server, tensors_in
from fedif_flower.run.trackers import build_trackers
from fedif_flower.run.updates import KeptUpdates, kept_copies
from fedif_flower.run.writer import OnRow
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.config import configured_stages
from fedif_flower.strategies.nodes import identify_clients
from fedif_flower.strategies.registry import STRATEGIES, BaseArguments, StrategyParts
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.setup import Setup
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Task

logger = logging.getLogger(__name__)

# Of a task that does not say how many training examples there are.
MOST_EXAMPLES = 10_000_000


def build_strategy(server: Server, callbacks: Sequence[Callback] = ()) -> ScreenedStrategy:
    """Return the strategy that the run config names."""
    config = server.config
    base = BaseArguments(
        fraction_train=config.fraction_train,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=config.num_clients,
        stages=configured_stages(config),
        callbacks=callbacks,
        setup=Setup(
            seed=config.seed,
            device=config.device,
            trainable_keys=server.validation.parameter_names,
            tied_keys=server.validation.tied_names,
            identify=identify_clients,
            min_valid_replies=config.min_valid_replies,
            max_failed_rounds=config.max_failed_rounds,
            max_paused_turns=config.max_paused_turns,
            max_num_examples=config.max_num_examples or server.task.num_train or MOST_EXAMPLES,
            max_examples_ratio=config.max_examples_ratio,
            aggregation=config.aggregation,
        ),
    )
    parts = StrategyParts(
        config=config,
        num_clients=config.num_clients,
        clients_per_round=config.clients_per_round,
        training=config.part(TrainingConfig),
        model=server.model,
        validation=server.validation,
        task=server.task,
        root_data=server.validation_data,
        is_malicious=malicious_marker(config),
        base=base,
    )
    return STRATEGIES[config.strategy](parts)


def malicious_marker(config: RunConfig) -> Callable[[ClientNode], bool]:
    """Return a function that tells which clients are known to misbehave."""
    malicious = (
        frozenset()
        if config.attack == "none"
        else malicious_partitions(config.num_clients, config.malicious_fraction, config.seed)
    )

    def is_malicious(node: ClientNode) -> bool:
        return node.attack != "none" if node.attack else node.partition_id in malicious

    return is_malicious


def run_federation(
    grid: Grid,
    config: RunConfig,
    on_row: OnRow | None = None,
    callbacks: Sequence[Callback] = (),
    task: Task | None = None,
) -> Path:
    """Run one federation to its end and return the directory of its results.

    Parameters
    ----------
    grid : Grid
        Flower's way to the clients.
    config : RunConfig
        Everything else.
    on_row : callable, optional
        Called after each round with its line of ``rounds.csv``.
    callbacks : sequence of Callback
        Told of each round and model after the run's own records: trackers, early stopping ...
    task : Task, optional
        What it is about; else the task that the run config names.

    Raises
    ------
    StorageError
        If another run writes to the same directory, or the disk is full.
    FedIFError
        Whatever else stopped the run.
    """
    server = build_server(config, task)  # What cannot be loaded leaves no directory behind.
    require_simulated(grid, server.config)
    try_clients(grid, server)
    if needs_collusion(server.config):
        names, tied = server.validation.parameter_names, server.validation.tied_names
        grid = ColludingGrid(grid, server.config, names, tied)
    with hold_directory(server.config.run_dir):
        # Nodes are asked who they are before the strategy starts.
        return _run_federation(screened(grid), server, on_row, callbacks)


def _run_federation(
    grid: Grid, server: Server, on_row: OnRow | None, callbacks: Sequence[Callback]
) -> Path:
    """Run one federation in a directory of its own."""
    config = server.config
    settings = {**config.identity(), "data": server.fingerprint}
    checkpoints = CheckpointFolder(config.run_dir / "checkpoints", settings)
    checkpoint = checkpoints.find(config.resume)
    if checkpoint is None:  # A run that goes on does so without members that do not come back.
        wait_for_clients(grid, config)
    trackers = build_trackers(
        config.trackers, config.run_dir, config.to_mapping(), resumed=checkpoint is not None
    )
    recorder = RunRecorder(config, malicious_marker(config), on_row, server.task.metrics)
    origin = provenance(config, server.fingerprint, tensors_in(server.validation_data))
    paying = server.validation
    if config.secret_validation:
        salt = salt_for(recorder.run_dir / PROVENANCE)
        origin |= {NONCE: salt.nonce, COMMITMENT: salt.commitment}
        paying = paying_part(server, salt.value)
        logger.info("contributions are measured on secret data, commitment %s", salt.commitment)
    write_json(recorder.run_dir / PROVENANCE, origin)
    arrays = model_arrays(server.model)
    done = checkpoint.server_round if checkpoint else 0
    rounds_to_keep = config.num_server_rounds - done if config.keep_updates else 0
    kept = kept_copies(rounds_to_keep, config.clients_per_round)
    require_space(recorder, arrays, copies=4 if config.checkpoint_every else 1, kept=kept)
    strategy = build_strategy(server)
    attributed = config.attribution != "off"
    attribution = RecordedAttribution(config, paying) if attributed else None
    run = ResumableRun(
        checkpoints, strategy, recorder, every=config.checkpoint_every, attribution=attribution
    )
    recorder.evaluation = ServerEvaluation(
        server.validation, server.test, recorder, server.triggered
    )
    own: list[Callback] = [recorder]
    if attribution is not None:
        own.append(attribution)
        if config.policy == "quarantine":
            own.append(RecordedQuarantine(config, attribution))
    if config.keep_updates:
        own.append(KeptUpdates(config.run_dir, after=done))
    strategy.callbacks += [*own, *trackers, *callbacks, run]
    if checkpoint is None:
        checkpoints.begin()
    else:
        arrays = run.restore(checkpoint, grid, arrays)
    try:
        result = strategy.start(
            grid=grid,
            initial_arrays=arrays,
            num_rounds=run.rounds_left,
            timeout=config.round_timeout,
            train_config=instructions(
                config.part(ClientConfig),
                server.task,
                run=config.digest(),
                collusion=needs_collusion(config),
            ),
        )
    except Exception:
        run.stopped()
        raise
    final = result.arrays if len(result.arrays) else arrays
    summary = recorder.finish(final.to_torch_state_dict())
    if attribution is not None:
        summary["attribution"] = attribution.sums()
    write_report(recorder, summary, attribution.rounds if attribution else ())
    for what, count in troubles(summary):
        logger.warning("%s: %s", what, count)
    return recorder.run_dir
