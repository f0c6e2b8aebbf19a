"""A federation's rounds and clients as files, for those who have no run config."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.completeness import (
    DEFAULT_RULE,
    Completeness,
    CompletenessRule,
    completeness,
)
from fedif_flower.run.figures import describe_machine, summarize
from fedif_flower.run.folder import RunFolder, write_tensors
from fedif_flower.run.provenance import origin
from fedif_flower.run.report import ReportedRun, write_report
from fedif_flower.run.rows import AttendanceRow, ClientRow, RoundRow
from fedif_flower.run.server_evaluation import Evaluated, ServerEvaluation, metric_name
from fedif_flower.strategies.attributed import RoundAttribution
from fedif_flower.strategies.attribution import PathAttribution
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.strategies.reports import RoundReport, client_line, round_line
from fedif_flower.strategies.scoring import Scoring
from fedif_flower.tasks.batches import tensors_of
from fedif_flower.tasks.config import OWN
from fedif_flower.tasks.task import Metric
from fedif_flower.valuation import Validation

OnRow = Callable[[RoundRow], None]
_BOUNDS = ("length", "borrowed", "weight")  # Of credit.


class RunWriter(Callback):
    """Writes tables as rounds come in, and ``report.md`` at the end.

    ``rounds.csv`` has a line for each round, ``clients.csv`` for each client in it, and
    ``attendance.csv`` wherever a member came, left or was paused.

    The lines are readable after a crash; the report has a picture of the accuracies and one of the
    weight scores. Pass it as one of a strategy's ``callbacks``. Accuracy and loss are also written
    where an ``evaluate_fn`` or another callback gives them, as ``test-accuracy``,
    ``validation-loss`` and so on.

    Beside a :class:`~fedif_flower.PathAttribution` it writes contributions as well, with settings,
    hashes, the model and, where no error ended the run, a summary: ``fedif statement`` makes a
    statement of that.

    Parameters
    ----------
    directory : str or Path
        Where to; it is made, and an earlier run's files of the same names are replaced.
    validation, test : Validation, optional
        Held-out data on which each new model is evaluated.
    every : int
        Rounds from one evaluation to the next, >= 1.
    title : str
        Of the report.
    is_malicious : callable, optional
        Tells which clients are known to misbehave, to mark them.
    on_row : callable, optional
        Called with each line of ``rounds.csv``.
    metrics : sequence of Metric
        What is evaluated beside loss and accuracy: a column each for test and validation.

    Attributes
    ----------
    folder : RunFolder
        Its files.
    rounds : list of RoundRow
        The lines of ``rounds.csv``.
    clients : list of ClientRow
        The lines of ``clients.csv``.
    attendance : list of AttendanceRow
        The lines of ``attendance.csv``.
    names : dict of int to str
        What the operator calls members, by client id.

    Raises
    ------
    ConfigError
        If the directory cannot be written to.
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
    ) -> None:
        self.folder = RunFolder(directory)
        self.title = title
        self.metrics = metrics
        self.evaluation = ServerEvaluation(validation, test, metrics)
        self._strategy: RunningStrategy | None = None
        self._attribution: PathAttribution | None = None
        self._every = every
        self._is_malicious = is_malicious or (lambda _: False)
        self._on_row = on_row
        self._started = time.perf_counter()
        self._report: RoundReport | None = None
        self._evaluated = Evaluated()
        self.rounds: list[RoundRow] = []
        self.clients: list[ClientRow] = []
        self.attendance: list[AttendanceRow] = []
        self.names: dict[int, str] = {}
        try:
            self._begin()
        except (OSError, StorageError) as error:
            raise ConfigError(f"{self._place} cannot write: {error}") from error

    @property
    def run_dir(self) -> Path:
        """The directory, absolute."""
        return self.folder.path

    @property
    def _place(self) -> str:
        """Name the directory for errors."""
        return f"directory = {str(self.run_dir)!r}:"

    @property
    def last_round(self) -> int:
        """The last round there will be, as far as is known."""
        return self.rounds[-1].round if self.rounds else 0

    def is_due(self, server_round: int) -> bool:
        """Tell whether a round's model is to be evaluated."""
        return server_round % self._every == 0

    @property
    def scoring(self) -> Scoring | None:
        """How the strategy's weight scores come about, as far as that is known."""
        return None if self._strategy is None else self._strategy.scoring

    @property
    def rule(self) -> CompletenessRule:
        """When the run counts as complete."""
        return DEFAULT_RULE

    @property
    def completeness(self) -> Completeness:
        """Whether what was asked for so far came."""
        return completeness(self.rounds, self.clients, self.attendance, self.names, self.rule)

    @property
    def reported(self) -> ReportedRun:
        """What the report tells of the rounds so far."""
        return ReportedRun(
            self.title,
            self.rounds,
            self.clients,
            self.last_round,
            self.completeness,
            self.names,
            self.scoring,
        )

    def on_start(self, strategy: RunningStrategy) -> None:
        """Note whose weight scores and contributions are written."""
        self._strategy = strategy
        for callback in strategy.callbacks:
            if isinstance(callback, PathAttribution) and self._attribution is None:
                self._attribution = callback
                self._begin_attribution(callback)

    def _begin_attribution(self, attribution: PathAttribution) -> None:
        """Write what a statement needs beside the rounds."""
        settings = self._settings(attribution)
        self.folder.config.write(settings)
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        tensors = (t for b in attribution.validation.batches for t in tensors_of(b.content))
        self.folder.provenance.write(origin(digest, tensors))
        self.folder.begin_attribution(attribution.num_classes)
        attribution.on_attribution.append(self.folder.add_attribution)

    def _settings(self, attribution: PathAttribution) -> dict[str, Any]:
        """Return what is known of the run, by the keys of a run config."""
        assert self._strategy is not None  # on_start
        return {
            "task": OWN + self.title,
            "strategy": type(self._strategy).__name__,
            "seed": self._strategy.seed,
            "attribution": attribution.rule,
            **{f"credit.{name}": getattr(attribution.bounds, name, 0.0) for name in _BOUNDS},
        }

    def on_round(self, report: RoundReport) -> None:
        """Take in a strategy's report of a round, and write its clients' lines."""
        self._report = report
        rows = [
            ClientRow(
                **client_line(report.server_round, client),
                malicious=self._is_malicious(client.node),
            )
            for client in report.clients
        ]
        self.clients.extend(rows)
        self.folder.clients.append(map(vars, rows))
        if changes := [AttendanceRow.of(report.server_round, c) for c in report.changes]:
            self.attendance.extend(changes)
            self.folder.attendance.append(map(vars, changes))
            self._add_names({c.node.client_id: c.node.name for c in report.changes if c.node.name})
        self._add_names({c.node.client_id: c.node.name for c in report.clients if c.node.name})

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float]:
        """Return the metrics of a round's model, where it is to be evaluated."""
        if self.is_due(server_round):
            self._evaluated = self.evaluation.evaluate(server_round, model)
        return self._evaluated.metrics

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Write a round's line, with the metrics of its model."""
        evaluated, self._evaluated = self._evaluated, Evaluated()
        report = self._report
        if report is None or report.server_round != server_round:
            report = RoundReport(server_round, (), 0, 0, 0, False, 0.0, 0.0, 0)
        line = round_line(report)
        line["reason"] = "; ".join(filter(None, (report.reason, evaluated.reason)))
        # An ``evaluate_fn`` may give lists as well.
        found = {name: v for name, v in metrics.items() if isinstance(v, int | float)}
        own = {
            f"{split}_{metric.key}": found[name]
            for metric in self.metrics
            for split in ("test", "validation")
            if (name := metric_name(split, metric.key)) in found
        }
        row = RoundRow(
            **line,
            test_accuracy=_defined(found.get("test-accuracy")),
            test_loss=found.get("test-loss"),
            validation_accuracy=_defined(found.get("validation-accuracy")),
            validation_loss=found.get("validation-loss"),
            evaluation_seconds=evaluated.seconds,
            attack_success=found.get("attack-success"),
            losses=" ".join(f"{loss:.6g}" for loss in report.losses),
            metrics=own,
        )
        self.rounds.append(row)
        self.folder.rounds.append([row.columns()])
        if self._on_row is not None:
            self._on_row(row)

    def on_end(self) -> None:
        """Write the report; and the summary, if it is the run's good end."""
        if self._attribution is None or sys.exception() is not None:
            summary = summarize(self.rounds, self.clients, self.metrics)
            write_report(self.folder, self.reported, summary)
            return
        assert self._strategy is not None  # on_start
        self._attribution.settle()
        state_dict = self._strategy.model.record.to_torch_state_dict()
        device = str(self._attribution.validation.device)
        settings = {**self._settings(self._attribution), "num-server-rounds": self.last_round}
        self._conclude(settings, device, state_dict, self._attribution.rounds)

    def _conclude(
        self,
        settings: Mapping[str, Any],
        device: str,
        state_dict: Mapping[str, Tensor],
        attributed: Sequence[RoundAttribution] | None,
    ) -> dict[str, Any]:
        """Write model, report and, last of all, ``summary.json``; return the summary."""
        write_tensors(self.folder.model, state_dict)
        reported = replace(self.reported, attributed=attributed or ())
        summary = {
            "config": settings,
            **summarize(self.rounds, self.clients, self.metrics),
            "scoring": self.scoring.to_record() if self.scoring else None,
            "completeness": reported.completeness.to_record(),
            "seconds": round(time.perf_counter() - self._started, 3),
            "machine": describe_machine(device),
        }
        if attributed is not None:
            summary["attribution"] = {
                name: math.fsum(getattr(found, name) for found in attributed)
                for name in ("decrease", "attributed", "remainder")
            }
        write_report(self.folder, reported, summary)
        self.folder.summary.write(summary)
        return summary

    def _begin(self) -> None:
        """Replace the files of an earlier run."""
        self.folder.begin()
        self._write_tables()

    def _write_tables(self) -> None:
        """Write both tables, as far as they go."""
        splits = ("test", "validation")
        self.folder.rounds.begin(f"{s}_{metric.key}" for metric in self.metrics for s in splits)
        self.folder.rounds.append(row.columns() for row in self.rounds)
        self.folder.clients.begin()
        self.folder.clients.append(map(vars, self.clients))
        self.folder.attendance.begin()
        self.folder.attendance.append(map(vars, self.attendance))

    def _add_names(self, names: Mapping[int, str]) -> None:
        """Write what members are called, where that is new."""
        if names.items() <= self.names.items():
            return
        self.names |= names
        self.folder.names.replace(
            {"client_id": key, "name": name} for key, name in sorted(self.names.items())
        )


def _defined(value: float | None) -> float | None:
    """Return ``None`` for NaN: what is not defined is not written."""
    return None if value is None or math.isnan(value) else value
