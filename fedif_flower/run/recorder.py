"""The records of a run with a run config, and the checkpoints from which it can be resumed.

``config.json`` comes first, ``rounds.csv`` and ``clients.csv`` grow by whole lines, and
``summary.json`` comes last: its presence means that the run completed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedif_flower.errors import (
    CheckpointError,
    FedIFError,
    StorageError,
    TrainingFailedError,
)
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.run.checkpoint import Checkpoint, CheckpointFolder
from fedif_flower.run.last_rounds import CompleteRound
from fedif_flower.run.loaded_task import tensors_in
from fedif_flower.run.logs import note
from fedif_flower.run.machine import describe_machine
from fedif_flower.run.part import RunContext
from fedif_flower.run.provenance import RUN_ID, origin
from fedif_flower.run.record_files import Table
from fedif_flower.run.results import run_title
from fedif_flower.run.rows import Line
from fedif_flower.run.strategy import malicious_marker
from fedif_flower.run.writer import OnRow, RunWriter
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.model import require_shapes
from fedif_flower.server.nodes import has_real_nodes, is_simulated
from fedif_flower.server.record import Round
from fedif_flower.server.run import RunningStrategy

# With real nodes, checkpoints beyond those of ``checkpoint-every`` take at most this share of the
# time.
MOST_SAVING = 0.03
logger = logging.getLogger(__name__)


class RunRecorder(RunWriter):
    """Writes a run's results and its checkpoints; in a resumed run, each round is recorded once.

    Parameters
    ----------
    run : RunContext
        The run; results go to its folder, replacing an earlier run's once it begins.
    strategy : ScreenedStrategy
        The run's strategy, whose scores, counters and known nodes are in checkpoints.
    checkpoints : CheckpointFolder
        It gets a checkpoint every ``checkpoint-every`` rounds and after the last round.
    on_row : callable, optional
        As a :class:`RunWriter` takes it.
    """

    def __init__(
        self,
        run: RunContext,
        strategy: ScreenedStrategy,
        checkpoints: CheckpointFolder,
        on_row: OnRow | None = None,
    ) -> None:
        config = run.config
        loaded = run.loaded
        super().__init__(
            config.run_dir,
            validation=loaded.validation,
            test=loaded.test,
            triggered=loaded.triggered,
            metrics=loaded.task.metrics,
            every=config.eval_every,
            title=run_title(config.to_mapping()),
            is_malicious=malicious_marker(config),
            on_row=on_row,
        )
        self.remarks = list(loaded.task.remarks)
        for built in run.built:
            self.remarks += built.remarks
            self.evaluation.columns += built.columns
        # Parts are told of a line before the caller of the run is.
        listeners_of_parts = [built.on_row for built in run.built if built.on_row]
        self.listeners = [*listeners_of_parts, *self.listeners]
        self.keeps_attempts = not config.overwrite
        if run.goes_on_here:
            self._rounds_done = run.done
        self.run = run
        self.config = config
        self.strategy = strategy
        self.checkpoints = checkpoints
        self.num_rounds = config.num_server_rounds
        self.evaluation.last_round = self.num_rounds
        self._part_states = run.state
        stays: list[Path] = []
        for built in run.built:
            stays += built.stays
        # Config and provenance are replaced atomically later. If they were removed first, a killed
        # process would lose where the results of rounds that are all done come from.
        if run.is_done:
            stays += [run.folder.config.path, run.folder.provenance.path]
        self._stays = stays
        self._own_tables = (self.folder.rounds, self.folder.clients, self.folder.attendance)
        # Lines that are in no checkpoint yet, by table.
        self._unsaved: dict[str, list[Line]] = {table.name: [] for table in self._own_tables}
        self._last: CompleteRound | None = None
        # When the last checkpoint was written, by time.perf_counter, and how many seconds it took.
        self._saved_at = -math.inf
        self._save_seconds = 0.0

    @property
    def rounds_left(self) -> int:
        """How many rounds are left to run."""
        return self.num_rounds - self.strategy.completed_rounds

    def on_start(self, strategy: RunningStrategy) -> None:
        """Begin the files, with the lines of a checkpoint if there is one."""
        if not self.run.checkpoint:
            self.checkpoints.begin()
        names = self.names  # The checkpoint's names, which the next line forgets.
        super().on_start(strategy)
        if self.run.checkpoint:
            for table in self._own_tables:
                # Unlike self._add, this does not keep the lines for the next checkpoint.
                super()._add(table, self.run.checkpoint.lines.get(table.name, ()))
            attendance = self.run.checkpoint.lines.get("attendance", ())
            self._roll.go_on(attendance, is_simulated=is_simulated(self.run.grid))
            # The checkpoint's names are in no file yet.
            self._add_names(names)

    def _alone(self) -> AbstractContextManager[None]:
        """Hold nothing: ``run_federation`` holds the run's folder already."""
        return nullcontext()

    def _write_origin(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write the run config, and hashes of all that the results come from.

        If an earlier process has done all rounds, its hashes stay, since the results come from the
        code of that time, whatever is installed now. ``config.json`` gets no key that the earlier
        process did not know.
        """
        settings = self.config.to_mapping()
        origin_before: dict[str, Any] = {}
        before = self.run.folder_before
        if self.run.is_done and before is not None:
            origin_before = before.provenance.read_if_there()
            settings_before = before.config.read_if_there() or settings
            settings = {key: value for key, value in settings.items() if key in settings_before}
        self.folder.config.write(settings)
        loaded = self.run.loaded
        held_out = tensors_in(loaded.validation_data)
        provenance = {
            "data_fingerprint": loaded.fingerprint,
            RUN_ID: self.run.run_id,
            **origin(self.config.digest(), held_out, self.run.modules),
            **origin_before,
            **self.run.provenance,
        }
        self.folder.provenance.write(provenance)

    def on_asked(self, current: Round) -> None:
        """Let lines of the log say which round they are about; note who is there."""
        note(round=current.round)
        super().on_asked(current)

    def on_round_end(self, server_round: int) -> None:
        """Take note of a round whose lines are written; write its checkpoint if one is due."""
        self._last = CompleteRound.of(server_round, self.strategy)
        if self._is_save_due(server_round):
            self._save()

    def _is_save_due(self, server_round: int) -> bool:
        """Whether a round is to have a checkpoint.

        With real nodes, a lost round costs more than a checkpoint. So each round has one as long as
        checkpoints take no more than :data:`MOST_SAVING` of the time. A round that cannot be done a
        second time, since members answer only once for its model, always has one.
        """
        every = self.config.checkpoint_every
        if not every or not server_round:
            return False
        if server_round == self.num_rounds or server_round % every == 0:
            return True
        if not has_real_nodes(self.run.grid):
            return False
        if self.strategy.intake.asks_once:
            return True
        since_last_save = time.perf_counter() - self._saved_at
        return since_last_save >= self._save_seconds / MOST_SAVING

    def on_end(self) -> None:
        """Evaluate the last model if it was not; :meth:`finish` writes the report."""
        self._evaluate_last()

    def _circumstances(self) -> dict[str, Any]:
        """Return what the summary has beside figures, including the run config."""
        return {
            "config": self.config.to_mapping(),
            **super()._circumstances(),
            "machine": describe_machine(self.config.device),
        }

    def restore(self, checkpoint: Checkpoint, grid: Grid) -> ArrayRecord:
        """Take over the state of a run at a checkpoint; return the global model of that moment.

        Scores belong to clients by their lasting id; see
        :class:`~fedif_flower.messages.client_node.ClientNode`.

        Parameters
        ----------
        checkpoint : Checkpoint
            A checkpoint of a run with the same settings.
        grid : Grid
            The way to the clients.

        Raises
        ------
        CheckpointError
            If anything in the checkpoint does not belong to this run; no file has changed then.
        """
        last = checkpoint.server_round
        try:
            arrays = self._take_over(checkpoint)
        except (ValueError, FedIFError) as error:
            raise _unfit(last, str(error)) from error
        except Exception as error:  # A file that was made by hand can hold anything.
            raise _unfit(last, repr(error)) from error
        if self.rounds_left:
            try:  # Wait for nodes as at a run's start, but go on without those that do not come.
                self.strategy.nodes.online(grid, self.strategy.min_available_nodes)
            except TrainingFailedError as error:
                logger.warning("%s; going on with those that are there", error)
        self.checkpoints.go_on(checkpoint)
        if self.rounds_left:
            logger.info("Resumed: round %d of %d is next", last + 1, self.num_rounds)
        else:
            words = "Resumed: all %d rounds are done; model, report and summary are written again"
            logger.info(words, last)
        return arrays

    def _take_over(self, checkpoint: Checkpoint) -> ArrayRecord:
        """Take over what a checkpoint holds, and return its model; raise if it does not fit."""
        last = checkpoint.server_round
        if last > self.num_rounds:
            raise ValueError(
                f"it is later than the last round, num-server-rounds = {self.num_rounds}"
            )
        shapes = self.run.loaded.validation.shapes
        arrays = tensor_arrays(checkpoint.arrays)
        require_shapes("the run", shapes, arrays)
        if checkpoint.way_back is not None:
            earlier = tensor_arrays(checkpoint.way_back)
            require_shapes("the run", shapes, earlier)
            self.strategy.model.set_proven(earlier)
        if [row["round"] for row in checkpoint.lines["rounds"]] != list(range(last + 1)):
            raise ValueError(f"its records are not those of the rounds 0 to {last}")
        records = checkpoint.records
        self.names = {int(client_id): str(name) for client_id, name in records["names"].items()}
        self._seconds_before = float(records["seconds"])
        self.strategy.load_state_dict(checkpoint.strategy)
        self.strategy.completed_rounds = last
        for name, part in self._part_states.items():
            part.restore(checkpoint.lines.get(name, ()), records.get(name), last)
        return arrays

    def stopped(self, error: BaseException) -> None:
        """Save the last complete round of a run that an error ends; log how to resume the run.

        If the checkpoint cannot be written, or would lack a record, the run ends without it: the
        error to report is the one that ended the run.
        """
        last = self.run.done
        if self._last is not None:
            last = self._last.server_round
        last = max(last, 0)
        if isinstance(error, Exception | KeyboardInterrupt | SystemExit):
            with contextlib.suppress(CheckpointError, StorageError):
                self._save_unsaved()
        logger.warning("stopped after round %d of %d; %s", last, self.num_rounds, self._way_on())

    def _way_on(self) -> str:
        """Return in words how the stopped run can be resumed."""
        saved = self.checkpoints.last_round
        if saved <= 0:
            return "there is no checkpoint to go on from"
        name = json.dumps(self.run_dir.name)
        keys = f'run-name={name} resume="auto" num-clients={self.config.num_clients}'
        if saved >= self.num_rounds:
            return f"all rounds are done; model, report and summary are written again with {keys}"
        return f"it goes on at round {saved + 1} with {keys}"

    def _add(self, table: Table, lines: Sequence[Line]) -> None:
        """Write lines of a table, and keep them for the next checkpoint."""
        super()._add(table, lines)
        if self.config.checkpoint_every:
            self._unsaved[table.name] += lines

    def _replace_last(self, table: Table, line: Line) -> None:
        """Replace the last line of a table, also for the next checkpoint."""
        super()._replace_last(table, line)
        unsaved = self._unsaved[table.name]
        if unsaved and unsaved[-1]["round"] == line["round"]:
            unsaved[-1] = line

    def finish(self, state_dict: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write the last round's checkpoint, if it has none, and the results.

        A callback may have ended the run in a round for which no checkpoint was due.
        """
        self._save_unsaved()
        return super().finish(state_dict)

    def _save_unsaved(self) -> None:
        """Write a checkpoint of the last complete round, unless it has one or they are off."""
        if self._last is None or not self.config.checkpoint_every:
            return
        if self._last.server_round > max(self.checkpoints.last_round, 0):
            self._save()

    def _save(self) -> None:
        """Write a checkpoint of the last complete round."""
        assert self._last is not None  # Callers have made sure.
        began = time.perf_counter()
        way_back = None
        if self._last.way_back is not None:
            way_back = self._last.way_back.to_torch_state_dict()
        # Lines come before records: to return its lines, the attribution finishes a round that is
        # still in work, which may correct what it remembers.
        lines = self._lines_until(self._last.server_round)
        records = self._records_until(self._last.server_round)
        checkpoint = Checkpoint(
            server_round=self._last.server_round,
            settings=self.checkpoints.settings,
            arrays=self._last.model.to_torch_state_dict(),
            strategy=self._last.strategy,
            records=records,
            lines=lines,
            way_back=way_back,
        )
        self.checkpoints.save(checkpoint)
        self._saved_at = time.perf_counter()
        self._save_seconds = self._saved_at - began

    def _lines_until(self, last: int) -> dict[str, Any]:
        """Return the lines of each table since the last checkpoint, up to round ``last``."""
        saved = self.checkpoints.last_round
        lines: dict[str, Any] = {}
        for table, unsaved in self._unsaved.items():
            # Lines in the last checkpoint are dropped only now, not in that save: a signal could
            # have interrupted it anywhere.
            self._unsaved[table] = [line for line in unsaved if line["round"] > saved]
            lines[table] = [line for line in self._unsaved[table] if line["round"] <= last]
        for name, part in self._part_states.items():
            lines[name] = part.lines(saved, last)
        return lines

    def _records_until(self, last: int) -> dict[str, Any]:
        """Return what a checkpoint holds beside the tables' lines, as of round ``last``."""
        records: dict[str, Any] = {
            "seconds": self._seconds(),
            "names": dict(self.names),
            RUN_ID: self.run.run_id,
        }
        for name, part in self._part_states.items():
            records[name] = part.memory(last)
        return records


def _unfit(server_round: int, reason: str) -> CheckpointError:
    """Return the error for a checkpoint that does not belong to this run."""
    return CheckpointError(
        f"the checkpoint of round {server_round} does not fit this run: {reason}"
    )
