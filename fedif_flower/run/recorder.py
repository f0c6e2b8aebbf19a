"""The records of a run, written round by round and readable after a crash.

``config.json`` comes first, ``rounds.csv`` and ``clients.csv`` grow by whole lines, and
``summary.json`` comes last: its presence means that the run completed.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import ClientRow, RoundRow, cell, checked_row
from fedif_flower.run.summary import describe_machine, summarize
from fedif_flower.storage import write_atomically, writing
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.reports import RoundReport
from fedif_flower.tasks.task import Metric
from fedif_flower.valuation import Evaluation

NAMES = "names.csv"
# What a run writes, and a new run in the same place removes; nothing else there is touched.
RESULT_FILES = (
    "summary.json",
    "config.json",
    "provenance.json",
    NAMES,
    "rounds.csv",
    "clients.csv",
    "attribution.csv",
    "attribution_rounds.csv",
    "quarantine.csv",
    "model.pt",
    "accuracy.png",
    "attribution.png",
    "metric.png",
    "contributions.png",
    "report.md",
)

OnRow = Callable[[RoundRow], None]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


class RunRecorder(Callback):
    """Writes one run's results as its rounds come in.

    Parameters
    ----------
    config : RunConfig
        The run; results go to ``config.run_dir``, replacing those of an earlier run there.
    is_malicious : callable
        Tells whether a client is known to misbehave, to mark it in the results.
    on_row : callable, optional
        Called with each line of ``rounds.csv``.
    metrics : sequence of Metric
        What is evaluated beside loss and accuracy: a column each for test and validation.

    Raises
    ------
    ConfigError
        If ``output-dir`` cannot be written to.
    """

    def __init__(
        self,
        config: RunConfig,
        is_malicious: Callable[[ClientNode], bool],
        on_row: OnRow | None = None,
        metrics: Sequence[Metric] = (),
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.run_dir = config.run_dir
        self._is_malicious = is_malicious
        self._on_row = on_row
        self._started = time.perf_counter()
        self._report: RoundReport | None = None
        self.rounds: list[RoundRow] = []
        self.clients: list[ClientRow] = []
        self.names: dict[int, str] = {}
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            for name in RESULT_FILES:
                (self.run_dir / name).unlink(missing_ok=True)
            write_json(self.run_dir / "config.json", config.to_mapping())
            self._write_header("rounds.csv", RoundRow)
            self._write_header("clients.csv", ClientRow)
        except (OSError, StorageError) as error:
            raise ConfigError(
                f"output-dir = {config.output_dir!r}: cannot write: {error}"
            ) from error

    def on_round(self, report: RoundReport) -> None:
        """Take in a strategy's report of a round."""
        self._report = report
        rows = [
            ClientRow(
                round=report.server_round,
                partition_id=client.node.partition_id,
                client_id=client.node.client_id,
                malicious=self._is_malicious(client.node),
                score=client.score,
                normalized=client.normalized,
                contribution=client.contribution,
                weight=client.weight,
                accumulative_influence=client.accumulative,
                num_examples=client.num_examples,
                train_seconds=client.train_seconds,
                train_loss=client.train_loss,
                rejection=client.rejection,
                note=client.note,
            )
            for client in report.clients
        ]
        self.clients.extend(rows)
        self._append("clients.csv", rows)
        self._add_names({c.node.client_id: c.node.name for c in report.clients if c.node.name})

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
        report = (
            self._report if self._report and self._report.server_round == server_round else None
        )
        seconds = [c.train_seconds for c in report.clients if c.train_seconds] if report else []
        row = RoundRow(
            round=server_round,
            test_accuracy=_defined(test.accuracy) if test else None,
            test_loss=test.loss if test else None,
            validation_accuracy=_defined(validation.accuracy) if validation else None,
            validation_loss=validation.loss if validation else None,
            round_seconds=report.round_seconds if report else 0.0,
            train_seconds=statistics.fmean(seconds) if seconds else None,
            aggregation_seconds=report.aggregation_seconds if report else 0.0,
            evaluation_seconds=evaluation_seconds,
            accepted=report.num_accepted if report else 0,
            rejected=report.num_rejected if report else 0,
            failed=report.num_failed if report else 0,
            evaluations=report.evaluations if report else 0,
            round_failed=report.failed if report else False,
            reason="; ".join(filter(None, (report.reason if report else "", reason))),
            attack_success=attack_success,
            losses=" ".join(f"{loss:.6g}" for loss in report.losses) if report else "",
            metrics=dict(metrics or {}),
        )
        self.rounds.append(row)
        self._append("rounds.csv", [row])
        if self._on_row is not None:
            self._on_row(row)

    def state_dict(self, last_round: int) -> dict[str, Any]:
        """Return the lines up to a round, and the seconds so far."""
        return {
            "seconds": time.perf_counter() - self._started,
            "rounds": [dict(vars(row)) for row in self.rounds if row.round <= last_round],
            "clients": [dict(vars(row)) for row in self.clients if row.round <= last_round],
            "names": dict(self.names),
        }

    def load_state_dict(self, state: Mapping[str, Any], last_round: int) -> None:
        """Take over what :meth:`state_dict` returned, and write it in place of what is there.

        Raises
        ------
        ValueError, TypeError, KeyError
            If the lines are not those of a run up to this round.
        """
        rounds = [checked_row(RoundRow, row) for row in state["rounds"]]
        clients = [checked_row(ClientRow, row) for row in state["clients"]]
        if [row.round for row in rounds] != list(range(last_round + 1)):
            raise ValueError(f"its records are not those of the rounds 0 to {last_round}")
        if not all(1 <= row.round <= last_round for row in clients):
            raise ValueError("its records name clients of rounds that were not run")
        self._started = time.perf_counter() - float(state["seconds"])
        self.rounds, self.clients = rounds, clients
        self._write_header("rounds.csv", RoundRow)
        self._append("rounds.csv", self.rounds)
        self._write_header("clients.csv", ClientRow)
        self._append("clients.csv", self.clients)
        self._add_names({int(key): str(name) for key, name in state.get("names", {}).items()})

    def finish(self, state_dict: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write the model, and ``summary.json`` last; return the summary."""
        buffer = BytesIO()
        torch.save(dict(state_dict), buffer)
        write_atomically(self.run_dir / "model.pt", buffer.getvalue())
        summary = summarize(self.config, self.rounds, self.clients, self.metrics)
        summary["seconds"] = round(time.perf_counter() - self._started, 3)
        summary["machine"] = describe_machine(self.config.device)
        return summary

    def complete(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as completed."""
        write_json(self.run_dir / "summary.json", summary)

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

    def _write_header(self, name: str, row: type) -> None:
        write_atomically(self.run_dir / name, ",".join(self._columns(row)) + "\n")

    def _columns(self, row: type) -> list[str]:
        names = [field.name for field in dataclasses.fields(row) if field.name != "metrics"]
        return names + (metric_columns(self.metrics) if row is RoundRow else [])

    def _append(self, name: str, rows: Iterable[RoundRow | ClientRow]) -> None:
        path = self.run_dir / name
        with writing(path), path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            for row in rows:
                values = row.columns() if isinstance(row, RoundRow) else vars(row)
                writer.writerow([cell(values.get(name)) for name in self._columns(type(row))])


def metric_columns(metrics: Iterable[Metric]) -> list[str]:
    """Return the columns of ``rounds.csv`` that a task's metrics have."""
    return [f"{split}_{metric.key}" for metric in metrics for split in ("test", "validation")]


def _defined(value: float) -> float | None:
    """Return ``None`` for NaN: what is not defined is not written."""
    return None if math.isnan(value) else value
