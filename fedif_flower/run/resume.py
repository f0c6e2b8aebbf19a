"""Resuming: a run saves checkpoints while it goes on, and continues from the last one."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedif_flower.errors import CheckpointError, ConfigError, TrainingFailedError
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.run.checkpoint import Checkpoint, CheckpointFolder
from fedif_flower.run.config import RunConfig
from fedif_flower.run.part import Kept
from fedif_flower.run.provenance import RUN_ID
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.settings import AUTO, Scalar
from fedif_flower.strategies.base import ScreenedStrategy
from fedif_flower.strategies.callbacks import Callback

# A door's command, given what is added to its run config.
Again = Callable[[Mapping[str, Scalar]], str]
logger = logging.getLogger(__name__)


class ResumableRun(Callback):
    """Ties a strategy and its records to checkpoints.

    Parameters
    ----------
    folder : CheckpointFolder
        Where checkpoints go.
    strategy : ScreenedStrategy
        Its scores, counters and known nodes are kept.
    recorder : RunRecorder
        Its lines are kept: a run that goes on has each round once.
    every : int
        Save every so many rounds, and after the last; 0: never.
    kept : mapping of str to Kept
        What is kept of the run's parts, by name.
    run_id : str
        Drawn for this run.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        strategy: ScreenedStrategy,
        recorder: RunRecorder,
        *,
        every: int,
        kept: Mapping[str, Kept] = MappingProxyType({}),
        run_id: str = "",
    ) -> None:
        self.folder = folder
        self.kept = kept
        self.strategy = strategy
        self.recorder = recorder
        self.every = every
        self.run_id = run_id
        self.num_rounds = recorder.config.num_server_rounds
        self._last: tuple[int, ArrayRecord, dict[str, Any]] | None = None

    @property
    def rounds_left(self) -> int:
        """How many rounds Flower is to run."""
        return self.num_rounds - self.strategy.completed_rounds

    def restore(self, checkpoint: Checkpoint, grid: Grid, initial: ArrayRecord) -> ArrayRecord:
        """Go back to where a checkpoint was made; return the global model of that moment.

        Parameters
        ----------
        checkpoint : Checkpoint
            From the same settings.
        grid : Grid
            The way to the clients.
        initial : ArrayRecord
            The model before training: names, shapes and types must be the same.

        Raises
        ------
        CheckpointError
            If anything in it does not belong to this run.

        Notes
        -----
        Scores stay with a client's lasting id; see
        :class:`~fedif_flower.messages.client_node.ClientNode`.
        """
        with _refusing(checkpoint):
            if checkpoint.server_round > self.num_rounds:
                raise ValueError(f"it is to have {self.num_rounds} rounds")
            arrays = tensor_arrays(checkpoint.arrays)
            theirs, ours = _shapes(arrays), _shapes(initial)
            for name in theirs | ours:
                if theirs.get(name) != ours.get(name):
                    there, here = theirs.get(name, "no part"), ours.get(name, "no part")
                    raise ValueError(f"{name!r} is {there} of its model, {here} of this run's")
            self.strategy.load_state_dict(checkpoint.strategy)
        self.strategy.completed_rounds = checkpoint.server_round
        if self.rounds_left:
            self._meet_nodes(grid)
        with _refusing(checkpoint):
            for name, part in self.kept.items():
                lines, memory = checkpoint.lines.get(name, ()), checkpoint.records.get(name)
                part.restore(lines, memory, checkpoint.server_round)
            # Last: from here on, what lies in the folder is replaced.
            self.recorder.load_state_dict(checkpoint)
        self.folder.go_on(checkpoint)
        next_round = checkpoint.server_round + 1
        logger.info("Resumed: round %d of %d is next", next_round, self.num_rounds)
        return arrays

    def on_round_end(self, server_round: int) -> None:
        """Take note of a round whose lines are written; save it if it is due."""
        self._last = server_round, self.strategy.model.record, self.strategy.state_dict()
        last = server_round == self.num_rounds
        if self.every and server_round and (last or server_round % self.every == 0):
            self._save()

    def stopped(self) -> None:
        """Save the last complete round of a run that ends with an error, if that is possible."""
        if self.every and self._last is not None and self._last[0] > max(self.folder.last_round, 0):
            with contextlib.suppress(CheckpointError):  # the error that ends the run counts
                self._save()

    def farewell(self, again: Again) -> str:
        """Say after which round the run stopped, and the command that goes on with it."""
        last = max(self.folder.last_round if self._last is None else self._last[0], 0)
        said = f"stopped after round {last} of {self.num_rounds}"
        if self.folder.last_round < 1:
            return f"{said}; there is no checkpoint to go on from, the same command begins anew"
        command = again({"run-name": self.recorder.run_dir.name, "resume": AUTO})
        return f"{said}; go on at round {self.folder.last_round + 1} with: {command}"

    def _save(self) -> None:
        assert self._last is not None  # callers have made sure
        server_round, arrays, strategy = self._last
        records = self.recorder.state_dict()
        lines: dict[str, Any] = self.recorder.lines_between(self.folder.last_round, server_round)
        records[RUN_ID] = self.run_id
        for name, part in self.kept.items():
            lines[name] = part.lines(self.folder.last_round, server_round)
            records[name] = part.memory(server_round)
        model = arrays.to_torch_state_dict()
        settings = self.folder.settings
        self.folder.save(Checkpoint(server_round, settings, model, strategy, records, lines))

    def _meet_nodes(self, grid: Grid) -> None:
        """Wait for the nodes as at a run's start, but continue without those that do not come."""
        try:
            self.strategy.nodes.online(grid, self.strategy.min_available_nodes)
        except TrainingFailedError as error:
            logger.warning("%s; going on with those that are there", error)


def as_pairs(values: Mapping[str, Scalar]) -> str:
    """Return settings as ``KEY=VALUE ...``, the way a command line takes them."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())


def _shapes(arrays: ArrayRecord) -> dict[str, str]:
    return {name: f"{array.dtype} {tuple(array.shape)}" for name, array in arrays.items()}


@contextlib.contextmanager
def _refusing(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn whatever is wrong with a checkpoint's content into one sentence."""
    try:
        yield
    except Exception as error:  # a file that was made by hand can hold anything
        reason = error if isinstance(error, ValueError) else repr(error)
        raise CheckpointError(
            f"the checkpoint of round {checkpoint.server_round} does not fit this run: {reason}"
        ) from error


def require_space(config: RunConfig, arrays: ArrayRecord, copies: int) -> None:
    """Raise ConfigError if the disk cannot hold so many copies of the model."""
    needed = copies * sum(len(array.data) for array in arrays.values()) + 2**20
    free = shutil.disk_usage(config.run_dir).free
    if free < needed:
        raise ConfigError(
            f"output-dir = {config.output_dir!r}: {free / 2**20:.1f} MiB free, but the model, its "
            f"checkpoints and what is kept of rounds need {needed / 2**20:.1f} MiB"
        )
