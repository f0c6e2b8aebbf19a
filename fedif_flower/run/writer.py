"""A federation's rounds and clients as files, for those who have no run config."""

from __future__ import annotations

import csv
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.evaluation import ServerEvaluation
from fedif_flower.run.report import write_pages
from fedif_flower.run.rows import ClientRow, RoundRow, cell
from fedif_flower.run.summary import summarize
from fedif_flower.storage import write_atomically, writing
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.strategies.reports import RoundReport, client_line, round_line
from fedif_flower.strategies.scoring import Scoring
from fedif_flower.tasks.task import Metric
from fedif_flower.valuation import Evaluation, Validation

NAMES = "names.csv"  # Client ids and what the operator calls them.
OnRow = Callable[[RoundRow], None]


class RunWriter(Callback):
    """Writes ``rounds.csv`` and ``clients.csv`` as rounds come in, and ``report.md`` at the end.

    The lines are readable after a crash; the report has a picture of the accuracies and one of
    the contributions. Pass it as one of a strategy's ``callbacks``.

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
    rounds : list of RoundRow
        The lines of ``rounds.csv``.
    clients : list of ClientRow
        The lines of ``clients.csv``.
    names : dict of int to str
        What the operator calls members, by client id.

    Raises
    ------
    ConfigError
        If the directory cannot be written to.
    """

    files: Sequence[str] = (
        "rounds.csv",
        "clients.csv",
        NAMES,
        "accuracy.png",
        "metric.png",
        "weight-scores.png",
        "report.md",
    )

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
        self.run_dir = Path(directory).expanduser().absolute()
        self.title = title
        self.metrics = metrics
        self._strategy: RunningStrategy | None = None
        self.evaluation = ServerEvaluation(validation, test, self)
        self._every = every
        self._is_malicious = is_malicious or (lambda _: False)
        self._on_row = on_row
        self._started = time.perf_counter()
        self._report: RoundReport | None = None
        self.rounds: list[RoundRow] = []
        self.clients: list[ClientRow] = []
        self.names: dict[int, str] = {}
        try:
            self._begin()
        except (OSError, StorageError) as error:
            raise ConfigError(f"{self._place} cannot write: {error}") from error

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

    def on_start(self, strategy: RunningStrategy) -> None:
        """Note whose weight scores are written."""
        self._strategy = strategy

    def on_round(self, report: RoundReport) -> None:
        """Take in a strategy's report of a round."""
        self._report = report
        rows = [
            ClientRow(
                **client_line(report.server_round, client),
                malicious=self._is_malicious(client.node),
            )
            for client in report.clients
        ]
        self.clients.extend(rows)
        self._append("clients.csv", rows)
        self._add_names({c.node.client_id: c.node.name for c in report.clients if c.node.name})

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float] | None:
        """Evaluate a round's model where it is due, and write the round's line."""
        return self.evaluation.on_model(server_round, model)

    def on_evaluation(
        self,
        server_round: int,
        test: Evaluation | None = None,
        validation: Evaluation | None = None,
        *,
        attack_success: float | None = None,
        metrics: Mapping[str, float] | None = None,
        evaluation_seconds: float = 0.0,
        reason: str = "",
    ) -> None:
        """Write a round's line once its model is evaluated; without, where it is not its turn.

        ``metrics`` are the task's by column; ``reason`` says why there is no evaluation although
        there should be one.
        """
        report = self._report
        if report is None or report.server_round != server_round:
            report = RoundReport(server_round, (), 0, 0, 0, False, 0.0, 0.0, 0)
        line = round_line(report)
        line["reason"] = "; ".join(filter(None, (report.reason, reason)))
        row = RoundRow(
            **line,
            test_accuracy=_defined(test.accuracy) if test else None,
            test_loss=test.loss if test else None,
            validation_accuracy=_defined(validation.accuracy) if validation else None,
            validation_loss=validation.loss if validation else None,
            evaluation_seconds=evaluation_seconds,
            attack_success=attack_success,
            losses=" ".join(f"{loss:.6g}" for loss in report.losses),
            metrics=dict(metrics or {}),
        )
        self.rounds.append(row)
        self._append("rounds.csv", [row])
        if self._on_row is not None:
            self._on_row(row)

    def on_end(self) -> None:
        """Write the report."""
        write_pages(self, summarize(self.rounds, self.clients, self.metrics))

    def _begin(self) -> None:
        """Replace the files of an earlier run."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        for name in self.files:
            (self.run_dir / name).unlink(missing_ok=True)
        self._write_settings()
        self._write_tables()

    def _write_settings(self) -> None:
        """Write what comes before the tables: nothing here."""

    def _write_tables(self) -> None:
        """Write both tables, as far as they go."""
        for name, kind, rows in (
            ("rounds.csv", RoundRow, self.rounds),
            ("clients.csv", ClientRow, self.clients),
        ):
            write_atomically(self.run_dir / name, ",".join(self._columns(kind)) + "\n")
            self._append(name, rows)

    def _columns(self, kind: type) -> list[str]:
        names = [field.name for field in dataclasses.fields(kind) if field.name != "metrics"]
        return names + (_metric_columns(self.metrics) if kind is RoundRow else [])

    def _append(self, name: str, rows: Iterable[RoundRow | ClientRow]) -> None:
        path = self.run_dir / name
        with writing(path), path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            for row in rows:
                values = row.columns() if isinstance(row, RoundRow) else vars(row)
                writer.writerow([cell(values.get(name)) for name in self._columns(type(row))])

    def _add_names(self, names: Mapping[int, str]) -> None:
        """Write what members are called, where that is new."""
        if names.items() <= self.names.items():
            return
        self.names |= names
        file = StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("client_id", "name"))
        writer.writerows((key, cell(name)) for key, name in sorted(self.names.items()))
        write_atomically(self.run_dir / NAMES, file.getvalue())


def _metric_columns(metrics: Iterable[Metric]) -> list[str]:
    """Return the columns of ``rounds.csv`` that a task's metrics have."""
    return [f"{split}_{metric.key}" for metric in metrics for split in ("test", "validation")]


def _defined(value: float) -> float | None:
    """Return ``None`` for NaN: what is not defined is not written."""
    return None if math.isnan(value) else value
