"""One federation on the server: data, model, strategy, rounds, report."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.serverapp import Grid

from fedif_flower.attacks import malicious_partitions
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import build_local_method
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import instructions
from fedif_flower.messages.masked_rounds import Masking
from fedif_flower.messages.models import model_arrays
from fedif_flower.messages.screened_grid import screened
from fedif_flower.messages.signed_replies import ReplyWitness
from fedif_flower.run.asked_vectors import AskedVectors
from fedif_flower.run.checkpoint import CheckpointFolder
from fedif_flower.run.collusion import ColludingGrid, needs_collusion
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.kept_replies import KeptReplies
from fedif_flower.run.kept_updates import KeptUpdates, kept_copies
from fedif_flower.run.live_state import LiveState
from fedif_flower.run.loaded_task import LoadedTask, load_task, tensors_in
from fedif_flower.run.lock import hold_directory
from fedif_flower.run.logs import about, note
from fedif_flower.run.masking import build_masking, keeper_title
from fedif_flower.run.preflight import (
    Members,
    require_simulated,
    try_clients,
    wait_for_clients,
    warn_of_one,
    with_free_folder,
)
from fedif_flower.run.provenance import RUN_ID, provenance
from fedif_flower.run.published_gradients import PublishedGradients
from fedif_flower.run.receipts import ReceiptBook
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.run.report import troubles
from fedif_flower.run.resume import Again, Kept, ResumableRun, require_space
from fedif_flower.run.rows import RoundRow
from fedif_flower.run.secret_validation import COMMITMENT, NONCE, new_salt, paying_part, salt_of
from fedif_flower.run.server_evaluation import ServerEvaluation
from fedif_flower.run.signatures import SignatureRecords
from fedif_flower.run.writer import OnRow
from fedif_flower.strategies.attributed import RoundAttribution
from fedif_flower.strategies.attribution import PathAttribution
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.combinations import require_maskable
from fedif_flower.strategies.config import configured_pace, configured_stages
from fedif_flower.strategies.nodes import Identify, identify_clients, is_simulated
from fedif_flower.strategies.quarantine import Quarantine
from fedif_flower.strategies.registry import BaseArguments, StrategyParts, build_named
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.setup import Setup
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Task
from fedif_flower.valuation import Validation
from fedif_flower.valuation.credit import CreditBounds

if TYPE_CHECKING:
    from fedif_flower.run.metrics import RunMetrics

logger = logging.getLogger(__name__)

# Of a task that does not say how many training examples there are.
MOST_EXAMPLES = 10_000_000


def build_strategy(
    loaded: LoadedTask,
    callbacks: Sequence[Callback] = (),
    masking: Masking | None = None,
    identify: Identify = identify_clients,
    witness: ReplyWitness | None = None,
) -> ScreenedStrategy:
    """Return the strategy that the run config names."""
    config = loaded.config
    base = BaseArguments(
        fraction_train=1.0 if config.rounds == "buffered" else config.fraction_train,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=config.num_clients,
        stages=configured_stages(config, loaded.validation),
        callbacks=callbacks,
        setup=Setup(
            seed=config.seed,
            device=config.device,
            trainable_keys=loaded.validation.parameter_names,
            tied_keys=loaded.validation.tied_names,
            identify=identify,
            min_valid_replies=config.min_valid_replies,
            max_failed_rounds=config.max_failed_rounds,
            max_paused_turns=config.max_paused_turns,
            max_num_examples=config.max_num_examples or loaded.task.num_train or MOST_EXAMPLES,
            max_examples_ratio=config.max_examples_ratio,
            pace=configured_pace(config),
            masking=masking,
            local_method=build_local_method(config, loaded.task, config.seed),
            witness=witness,
        ),
    )
    parts = StrategyParts(
        num_clients=config.num_clients,
        clients_per_round=config.clients_per_round,
        malicious_fraction=config.assumed_malicious_fraction,
        seed=config.seed,
        training=config.part(TrainingConfig),
        model=loaded.model,
        validation=loaded.validation,
        task=loaded.task,
        root_data=loaded.validation_data,
        is_malicious=malicious_marker(config),
        base=base,
    )
    return build_named(config.strategy, parts, config.settings_of("strategy"))


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


def credit_bounds(config: RunConfig) -> CreditBounds:
    """Return the bounds of credit that a run's settings name."""
    return CreditBounds(config.credit_length, config.credit_borrowed, config.credit_weight)


def build_attribution(
    config: RunConfig,
    validation: Validation,
    told: Sequence[Callable[[RoundAttribution], object]],
) -> PathAttribution | None:
    """Return the run's attribution, of whose rounds all of ``told`` are told; ``None``: off."""
    if config.attribution == "off":
        return None

    def tell(found: RoundAttribution) -> None:
        for function in told:
            function(found)

    return PathAttribution(
        validation,
        config.attribution,
        per_class=config.attribution_per_class,
        bounds=credit_bounds(config),
        on_attribution=tell,
    )


def recorded_quarantine(attribution: PathAttribution, folder: RunFolder) -> Quarantine:
    """Return a quarantine whose decisions are written.

    A resumed run decides again what was decided before, from the attribution in the checkpoint.
    """
    folder.quarantine.begin()
    return Quarantine(attribution, lambda decision: folder.quarantine.append([vars(decision)]))


def run_federation(
    grid: Grid,
    config: RunConfig,
    on_row: OnRow | None = None,
    callbacks: Sequence[Callback] = (),
    task: Task | None = None,
    again: Again | None = None,
    loaded: LoadedTask | None = None,
    head_key: Ed25519PrivateKey | None = None,
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
        Told of each round and model after the run's own records: curves, early stopping ...
    task : Task, optional
        What it is about; else the task that the run config names.
    again : callable, optional
        Returns the command that begins this run, given what is added to its run config: a run
        that is stopped says how it goes on.
    loaded : LoadedTask, optional
        The task, where it has been loaded for this run already.
    head_key : Ed25519PrivateKey, optional
        Signs what members are told of the records, with ``receipts``.

    Raises
    ------
    StorageError
        If another run writes to the same directory, or the disk is full.
    ConfigError
        If the directory holds a run that would be lost (see
        :func:`~fedif_flower.run.preflight.with_free_folder`).
    FedIFError
        Whatever else stopped the run.
    """
    # If this fails, no directory was made.
    loaded = loaded or load_task(with_free_folder(config), task)
    if loaded.config.masking != "off":
        require_maskable(build_strategy(loaded), model_arrays(loaded.model))
    if loaded.config.receipts and (head_key is None or is_simulated(grid)):
        raise ConfigError("receipts = True; allowed: false where clients are simulated")
    require_simulated(grid, loaded.config)
    warn_of_one(loaded.config)
    try_clients(grid, loaded)
    members = Members(grid)
    if needs_collusion(loaded.config):
        names, tied = loaded.validation.parameter_names, loaded.validation.tied_names
        grid = ColludingGrid(grid, loaded.config, names, tied)
    run_dir = loaded.config.run_dir
    with about(run=run_dir.name), _measured(loaded.config) as metrics, hold_directory(run_dir):
        grid = grid if metrics is None else metrics.watched(grid)
        # Nodes are asked who they are before the strategy starts.
        return _run_federation(
            screened(grid), loaded, on_row, callbacks, again, members, metrics, head_key
        )


@contextmanager
def _measured(config: RunConfig) -> Iterator[RunMetrics | None]:
    """Serve the run's figures, if they are asked for.

    Raises
    ------
    ConfigError
        If the package is missing, or the port is taken.
    """
    if not config.metrics_port:
        yield None
        return
    try:
        from fedif_flower.run.metrics import serving
    except ImportError as error:
        advice = f"{error}; pip install 'fedif-flower[metrics]'"
        raise ConfigError(f"metrics-port = {config.metrics_port}: {advice}") from error
    with serving(config) as metrics:
        yield metrics


class _NotedRound(Callback):
    """Lets the lines of the log say which round they are about."""

    def admit(self, nodes: Sequence[ClientNode], server_round: int) -> Sequence[ClientNode]:
        """Note that a round begins."""
        note(round=server_round)
        return nodes


def _run_federation(
    grid: Grid,
    loaded: LoadedTask,
    on_row: OnRow | None,
    callbacks: Sequence[Callback],
    again: Again | None,
    members: Members,
    measured: RunMetrics | None,
    head_key: Ed25519PrivateKey | None,
) -> Path:
    """Run one federation in a directory of its own."""
    config = loaded.config
    settings = {**config.identity(), "data": loaded.fingerprint}
    checkpoints = CheckpointFolder(RunFolder(config.run_dir).checkpoints, settings)
    checkpoint = checkpoints.find(config.resume)
    on_answer = None if measured is None else measured.keeper_answered
    masking = build_masking(config, loaded.validation.num_params, on_answer)
    if checkpoint is None:  # A resumed run does not wait for members that are gone.
        wait_for_clients(grid, config)
    run_id = str((checkpoint and checkpoint.records.get(RUN_ID)) or secrets.token_hex(16))
    witness = ReplyWitness(
        run_id,
        required=config.require_signatures,
        digests=config.receipts,
        keeps=config.keep_updates,
    )
    # What it refuses is said before anything is written.
    strategy = build_strategy(loaded, identify=members, witness=witness)
    members.ask(grid, loaded, resumed=checkpoint is not None)
    metrics = loaded.task.metrics

    def tell(row: RoundRow) -> None:
        if measured is not None:
            measured.row(row)
        if on_row is not None:
            on_row(row)

    evaluation = ServerEvaluation(loaded.validation, loaded.test, metrics, loaded.triggered)
    recorder = RunRecorder(
        config,
        malicious_marker(config),
        tell,
        metrics,
        evaluation,
        resumed=checkpoint is not None,
    )
    recorder.run_id = run_id
    origin = provenance(config, loaded.fingerprint, tensors_in(loaded.validation_data))
    origin[RUN_ID] = run_id
    paying = loaded.validation
    if config.secret_validation:
        earlier = checkpoint and checkpoint.records.get("paying_nonce")
        salt = salt_of(str(earlier)) if earlier else new_salt()
        recorder.paying_nonce = salt.nonce
        origin |= {NONCE: salt.nonce, COMMITMENT: salt.commitment}
        paying = paying_part(loaded, salt.value)
        logger.info("contributions are measured on secret data, commitment %s", salt.commitment)
    arrays = model_arrays(loaded.model)
    done = checkpoint.server_round if checkpoint else 0
    rounds_to_keep = config.num_server_rounds - done if config.keep_updates else 0
    kept = kept_copies(rounds_to_keep, config.clients_per_round)
    require_space(recorder, arrays, copies=4 if config.checkpoint_every else 1, kept=kept)
    asked = None
    if masking is not None:
        keeper = keeper_title(config)
        asked = AskedVectors(recorder.folder, masking, keeper, after=done)
        masking = replace(masking, on_vector=asked.note)
        strategy = build_strategy(loaded, masking=masking, identify=members, witness=witness)
    signatures = SignatureRecords(recorder.folder, witness)
    tables: dict[str, Kept] = {"signatures": signatures}
    own: list[Callback] = [_NotedRound(), recorder, signatures]
    on_attribution: list[Callable[[RoundAttribution], object]] = [recorder.folder.add_attribution]
    if config.receipts:
        assert head_key is not None  # run_federation
        book = tables["receipts"] = ReceiptBook(recorder.folder, witness, head_key)
        own.append(book)
        on_attribution.append(book.attributed)
    attribution = build_attribution(config, paying, on_attribution)
    run = ResumableRun(
        checkpoints,
        strategy,
        recorder,
        every=config.checkpoint_every,
        attribution=attribution,
        kept=tables,
    )
    if checkpoint is None:
        checkpoints.begin()
        if attribution is not None:
            recorder.folder.begin_attribution(attribution.num_classes)
    else:
        arrays = run.restore(checkpoint, grid, arrays)
    recorder.folder.provenance.write(origin)
    # Evaluation may take a model back: the recorder is the first to look at it.
    if measured is not None:
        own.append(measured)
    if attribution is not None:
        own.append(attribution)
        if config.policy == "quarantine":
            own.append(recorded_quarantine(attribution, recorder.folder))
    if config.keep_updates:
        own.append(KeptUpdates(recorder.folder, after=done))
        own.append(KeptReplies(recorder.folder, witness, after=done))
    if asked is not None:
        own.append(asked)
    if config.publish_gradients:
        own.append(PublishedGradients(loaded.validation))
    live = LiveState(recorder.folder)
    strategy.callbacks += [live, *own, *callbacks, run]
    with live:
        try:
            result = strategy.start(
                grid=grid,
                initial_arrays=arrays,
                num_rounds=run.rounds_left,
                timeout=config.round_timeout,
                train_config=instructions(
                    config.part(ClientConfig),
                    loaded.task,
                    run=config.digest(),
                    run_id=run_id,
                    receipts=config.receipts,
                    collusion=needs_collusion(config),
                ),
            )
        except BaseException as error:
            if isinstance(error, Exception | KeyboardInterrupt):
                run.stopped()
            if again is not None:
                logger.warning("%s", run.farewell(again))
            raise
        final = result.arrays if len(result.arrays) else arrays
        rounds = None if attribution is None else attribution.rounds
        summary = recorder.finish(final.to_torch_state_dict(), rounds)
    for what, count in troubles(summary):
        logger.warning("%s: %s", what, count)
    return recorder.run_dir
