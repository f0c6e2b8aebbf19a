"""A federation's rounds and clients as files, for runs without a run config.

``provenance.json`` comes first, with the settings that strategy and attribution show.
``rounds.csv`` and ``clients.csv`` grow by whole lines. ``summary.json`` comes last: its presence
means that the run came to its end.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from fedif_flower.attribution.callback import PathAttribution
from fedif_flower.attribution.gain import gain_of
from fedif_flower.attribution.table import BLOCKS_KEY, CLASSES_KEY
from fedif_flower.errors import StorageError, is_count, require
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.attempts import put_attempt_aside
from fedif_flower.run.evaluation import TRIGGERED, RoundEvaluation
from fedif_flower.run.figures import as_json_has_it, summarize
from fedif_flower.run.folder import (
    SETTINGS_KEY,
    RunFolder,
    hold_directory,
    write_tensors,
)
from fedif_flower.run.known_settings import known_settings, tensors_of_validation
from fedif_flower.run.machine import describe_machine
from fedif_flower.run.outside_code import modules_behind
from fedif_flower.run.presence import Change, RollCall
from fedif_flower.run.provenance import origin
from fedif_flower.run.record_files import Table
from fedif_flower.run.report import write_report
from fedif_flower.run.results import Run
from fedif_flower.run.rows import Line, read_table
from fedif_flower.server.model import GlobalModel, require_judge
from fedif_flower.server.record import Round
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.server.summary import shown_setting
from fedif_flower.tasks.task import Metric
from fedif_flower.valuation import Validation

OnRow = Callable[[Round], object]


class RunWriter(Callback):
    """Writes tables while rounds go on; ``report.md``, ``model.pt`` and a summary at the end.

    Pass it as one of a strategy's ``callbacks``. ``rounds.csv`` gets a line for each round,
    ``clients.csv`` for each client in a round, and ``attendance.csv`` whenever a member came, left
    or was paused. These lines are readable after a crash. The report has a picture of the
    accuracies and one of the weight scores.

    Accuracy and loss are also written if an ``evaluate_fn`` or another callback gives them, as
    ``test-accuracy``, ``validation-loss`` and so on. If a :class:`~fedif_flower.PathAttribution` is
    among the callbacks, its contributions are written as well, from which ``fedif statement`` makes
    a statement. If the strategy is started again, its files are continued.

    Parameters
    ----------
    directory : str or Path
        The folder to write to. It is made when the rounds begin, and held until they end: another
        run's writer is refused there meanwhile. Files of an earlier run, and files that have the
        names of a run's files, are put aside into ``attempt-1`` (``-2`` ...) in the folder, unless
        they are this strategy's own.
    validation, test : Validation, optional
        Held-out data on which each new model is evaluated.
    every : int
        Rounds from one evaluation to the next, >= 1.
    title : str
        The title of the report.
    is_malicious : callable, optional
        Tells which clients are known to misbehave, so that they can be marked.
    on_row : callable, optional
        Called with each :class:`~fedif_flower.server.record.Round`, once its line is written.
    metrics : sequence of Metric
        What is evaluated beside loss and accuracy: each has a column for test and for validation.
    triggered : Validation, optional
        Test examples with a backdoor's trigger, labelled with its target.

    Attributes
    ----------
    folder : RunFolder
        The files of the run.
    names : dict of int to str
        What the operator calls members, by client id.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        validation: Validation | None = None,
        test: Validation | None = None,
        every: int = 1,
        title: str = "Federation",
        is_malicious: Callable[[ClientNode], bool] | None = None,
        on_row: OnRow | None = None,
        metrics: Sequence[Metric] = (),
        triggered: Validation | None = None,
    ) -> None:
        self.folder = RunFolder(directory)
        self.title = title
        self.metrics = metrics
        self.remarks: Sequence[str] = ()  # What the report says about the data.
        self.names: dict[int, str] = {}
        require(is_count(every, 1), "every", every, "an integer >= 1")
        for name, function in (("is_malicious", is_malicious), ("on_row", on_row)):
            is_fine = function is None or callable(function)
            require(is_fine, name, shown_setting(function), "a function")
        for name, judge in (("validation", validation), ("test", test), ("triggered", triggered)):
            is_fine = judge is None or isinstance(judge, Validation)
            require(is_fine, name, shown_setting(judge), "a Validation")
        for metric in metrics:
            require(isinstance(metric, Metric), "metrics", shown_setting(metric), "a Metric each")
        splits = {"validation": validation, "test": test, TRIGGERED: triggered}
        judges = {split: judge for split, judge in splits.items() if judge is not None}
        self.evaluation = RoundEvaluation(judges, metrics, every)
        self.listeners: list[OnRow] = []
        if on_row:
            self.listeners.append(on_row)
        self._strategy: RunningStrategy | None = None
        # The exception that was being handled when the rounds began. If another one is being
        # handled when they end, that one has ended them.
        self._outer_error: BaseException | None = None
        self._written = -1  # The last round with a line.
        self._stays: Collection[Path] = ()  # An earlier run's files that are not removed.
        self.keeps_attempts = True  # Whether an earlier run's files are put aside.
        self._rounds_done = 0  # How many rounds of an earlier attempt count.
        self._attribution: PathAttribution | None = None
        self.is_malicious = is_malicious or _nobody_is
        self._held = ExitStack()  # Holds the directory, from the first round to the last.
        self._started = time.perf_counter()
        self._seconds_before = 0.0  # What an earlier attempt took for the rounds that count.
        self._round = Round(0)
        self._roll = RollCall()
        self._news: list[Change] = []  # Changes in members' presence that are not written yet.
        self._is_last_evaluated = False  # Whether the last line is about an evaluated model.

    @property
    def run_dir(self) -> Path:
        """The run's directory, absolute."""
        return self.folder.path

    def is_due(self, server_round: int) -> bool:
        """Whether a round's model is to be evaluated."""
        return self.evaluation.is_due(server_round)

    def on_start(self, strategy: RunningStrategy) -> None:
        """Begin the files, or go on with those of this strategy's earlier rounds.

        Raises
        ------
        StorageError
            If another run writes to the directory.
        """
        for judge in self.evaluation.judges.values():
            require_judge(type(self).__name__, judge, strategy.model)
        is_known = strategy is self._strategy
        # It goes on if it has the very rounds whose lines this writer has written.
        goes_on = is_known and self._written > 0 and strategy.completed_rounds == self._written
        self._strategy = strategy
        self._outer_error = sys.exception()
        self._held.close()
        with ExitStack() as held:
            self._hold_by(held)
            self._begin(strategy, goes_on=goes_on)
            self._held = held.pop_all()

    def _hold_by(self, held: ExitStack) -> None:
        """Hold the directory, unless another run does."""
        try:
            held.enter_context(self._alone())
        except StorageError:
            # The holder may be a writer whose loop has never called end(). If nothing refers to
            # that writer any more, collecting it releases the directory.
            gc.collect()
            held.enter_context(self._alone())

    def _alone(self) -> AbstractContextManager[None]:
        """Hold the directory, since the lines of two writers would be taken for one run's."""
        remedy = "call its strategy's end(), or give each RunWriter a directory of its own"
        setting = f"directory = {str(self.run_dir)!r}"
        return hold_directory(self.run_dir, setting=setting, remedy=remedy)

    def _begin(self, strategy: RunningStrategy, *, goes_on: bool) -> None:
        """Begin the files, or keep those of complete rounds."""
        self._attribution = _attribution_among(strategy.callbacks)
        # Changes noted in a round that an error ended have lost their lines.
        self._news = []
        self._roll = RollCall()
        if goes_on:
            self._keep_rounds(strategy)
        else:
            put_attempt_aside(self.folder, self._rounds_done, keeps_records=self.keeps_attempts)
            self._begin_files()
        if self._attribution is not None:
            self._attribution.forget_given_up(strategy)
            self._begin_attribution(self._attribution)
        self._write_origin(strategy)

    def _begin_files(self) -> None:
        """Remove an earlier run's files, and begin the tables."""
        self.folder.begin(self._stays, self._rounds_done)
        self.folder.rounds.begin(self.evaluation.columns)
        self.folder.clients.begin()
        self.folder.attendance.begin()
        self.names = {}
        self._round = Round(0)
        self._started = time.perf_counter()

    def _keep_rounds(self, strategy: RunningStrategy) -> None:
        """Keep the lines of complete rounds only: an error may have ended the round after them."""
        last = strategy.completed_rounds
        self.folder.begin({*self._stays, *self.folder.tables()}, last)
        for table in (self.folder.rounds, self.folder.clients, self.folder.attendance):
            table.keep(lambda line: int(line["round"]) <= last)
        attendance = read_table(self.folder.attendance.path, more=True).to_pylist()
        is_simulated = any(node.is_simulated for node in strategy.nodes.known)
        self._roll.go_on(attendance, is_simulated=is_simulated)

    def _begin_attribution(self, attribution: PathAttribution) -> None:
        """Write the rounds attributed so far, and let the attribution write those to come."""
        self.folder.begin_attribution(
            attribution.num_classes,
            len(attribution.block_weights),
            has_noise_ends=attribution.has_noise_ends,
        )
        for earlier in attribution.rounds:
            self.folder.add_attribution(earlier)
        if self.folder.add_attribution not in attribution.on_attribution:
            attribution.on_attribution.insert(0, self.folder.add_attribution)

    def _write_origin(self, strategy: RunningStrategy) -> None:
        """Write what the results come from, as far as it is known without a run config."""
        paying: list[Tensor] = []
        if self._attribution is not None:
            paying = tensors_of_validation(self._attribution.validation)
        # A strategy's attributes may be functions or objects that the user's app has made.
        objects = [strategy, *vars(strategy).values(), *strategy.stages, *strategy.callbacks]
        provenance = origin("", paying, modules_behind(objects))
        if self._attribution is not None:
            provenance[BLOCKS_KEY] = self._attribution.block_weights
            if self._attribution.class_weights:
                provenance[CLASSES_KEY] = self._attribution.class_weights
        provenance[SETTINGS_KEY] = known_settings(strategy, self._attribution)
        self.folder.provenance.write(provenance)

    def on_asked(self, current: Round) -> None:
        """Note changes in who is there, gone, or kept from being asked."""
        assert self._strategy is not None  # on_start has set it.
        # Changes may be left from a round that asked members and did not come to on_round.
        self._news = [*self._news, *self._roll.call(current, self._strategy.nodes)]

    def on_round(self, current: Round) -> None:
        """Take in a round, and write the lines of its clients and of changes in presence."""
        self._round = current
        lines = []
        for client in current.clients:
            is_malicious = self.is_malicious(client.node)
            lines.append({**client.line(current.round), "malicious": is_malicious})
        self._add(self.folder.clients, lines)
        if self._news:
            changes = [change.line(current.round) for change in self._news]
            self._add(self.folder.attendance, changes)
        nodes = [change.node for change in self._news]
        nodes += [client.node for client in current.clients]
        self._news = []
        self._add_names({node.client_id: node.name for node in nodes if node.name})

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float]:
        """Return the metrics of a round's model, if it is to be evaluated."""
        if not self.is_due(server_round):
            return {}
        return self.evaluation.evaluate(server_round, model)

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Write a round's line, with the metrics of its model."""
        assert self._strategy is not None  # on_start has set it.
        if self._strategy.is_stopping and not self.evaluation.is_evaluated:
            # A callback has just made this round the last, whose model is always evaluated.
            measured = self.evaluation.evaluate(server_round, self._strategy.model)
            metrics = {**metrics, **measured}
        # Without on_round, this is before round 1, or the round has asked nobody.
        if self._round.round != server_round:
            self._round = _round_without_members(server_round)
        self._is_last_evaluated = self.evaluation.is_evaluated
        self._round = self.evaluation.add_to(self._round, metrics)
        self._add(self.folder.rounds, [self._round.line()])
        self._written = server_round
        for listener in self.listeners:
            listener(self._round)

    def _evaluate_last(self) -> None:
        """Evaluate the last model, if a callback ended the run after its line was written."""
        assert self._strategy is not None  # on_start has set it.
        is_failed = sys.exception() is not self._outer_error
        if is_failed or self._is_last_evaluated or not self._strategy.is_stopping:
            return
        metrics = self.evaluation.evaluate(self._written, self._strategy.model)
        if self.evaluation.is_evaluated:
            evaluated = self.evaluation.add_to(self._round, metrics)
            self._replace_last(self.folder.rounds, evaluated.line())

    def on_end(self) -> None:
        """Write the report; also model and summary, unless an error ended the run."""
        with self._held:
            self._end()

    def _end(self) -> None:
        """Write what :meth:`on_end` does."""
        if sys.exception() is not self._outer_error:
            self._write_report(is_finished=False)
            self._end_attribution()
            return
        self._evaluate_last()
        self._end_attribution()
        assert self._strategy is not None  # on_start has set it.
        self.finish(self._strategy.model.record.to_torch_state_dict())

    def _end_attribution(self) -> None:
        """Write the attribution of the last round; later rounds are not this writer's."""
        if self._attribution is None:
            return
        try:
            self._attribution.settle()
        finally:
            # The strategy may be started again with another writer, which adds its own listener.
            listeners = self._attribution.on_attribution
            while self.folder.add_attribution in listeners:
                listeners.remove(self.folder.add_attribution)

    def finish(self, state_dict: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write model, report and, last of all, ``summary.json``; return the summary."""
        write_tensors(self.folder.model, state_dict)
        figures: dict[str, Any] = as_json_has_it(self._write_report())
        summary = figures | self._circumstances()
        self.folder.summary.write(summary)
        return summary

    def _seconds(self) -> float:
        """Return for how many seconds the run has gone on since its files were begun."""
        return self._seconds_before + time.perf_counter() - self._started

    def _circumstances(self) -> dict[str, Any]:
        """Return what the summary has beside figures."""
        device = getattr(self._strategy, "device", "")  # All strategies of this package have one.
        return {
            "title": self.title,
            "seconds": round(self._seconds(), 3),
            "machine": describe_machine(str(device)),
        }

    def _write_report(self, *, is_finished: bool = True) -> dict[str, Any]:
        """Write the report; return the figures in it."""
        run = Run(self.run_dir)
        summary = summarize(run.lines("rounds"), run.lines_of_complete_rounds(), self.metrics)
        summary["scoring"] = None
        if self._strategy is not None and self._strategy.scoring:
            summary["scoring"] = self._strategy.scoring.to_record()
        summary["completeness"] = run.completeness.to_record()
        if self.remarks:
            summary["data_remarks"] = list(self.remarks)
        if run.attributed.rounds:
            summary["attribution"] = gain_of(run.attributed.rounds)
        write_report(run, summary, self.title, is_finished=is_finished)
        return summary

    def _add(self, table: Table, lines: Sequence[Line]) -> None:
        """Write lines to a table."""
        table.append(lines)

    def _replace_last(self, table: Table, line: Line) -> None:
        """Replace the last line of a table."""
        table.replace_last(line)

    def _add_names(self, names: Mapping[int, str]) -> None:
        """Write the members' names, if any of these is new."""
        if names.items() <= self.names.items():
            return
        self.names |= names
        self.folder.names.replace(
            {"client_id": client_id, "name": name} for client_id, name in sorted(self.names.items())
        )


def _attribution_among(callbacks: Iterable[object]) -> PathAttribution | None:
    """Return the first attribution among a strategy's callbacks; ``None``: there is none."""
    for callback in callbacks:
        if isinstance(callback, PathAttribution):
            return callback
    return None


def _round_without_members(server_round: int) -> Round:
    """Return the record of a round that asked nobody; 0: of the model before round 1."""
    if server_round == 0:
        return Round(0)
    return Round(server_round, status="kept", reason="nobody was asked")


def _nobody_is(node: ClientNode) -> bool:  # noqa: ARG001
    return False
