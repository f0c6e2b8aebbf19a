"""The records of a run, written round by round and readable after a crash.

``config.json`` comes first, ``rounds.csv`` and ``clients.csv`` grow by whole lines, and
``summary.json`` comes last: its presence means that the run completed.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.messages.client_node import UNKNOWN_PARTITION, ClientNode
from fedif_flower.run.config import RunConfig
from fedif_flower.storage import write_atomically, writing
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.reports import RoundReport
from fedif_flower.valuation import Evaluation


@dataclass(frozen=True)
class RoundRow:
    """A line of ``rounds.csv``; seconds are wall time, ``train_seconds`` the mean per client.

    ``failed`` counts clients; ``round_failed`` says that the round left the model as it was,
    and ``reason`` why.
    """

    round: int
    test_accuracy: float | None
    test_loss: float | None
    validation_accuracy: float | None
    validation_loss: float | None
    round_seconds: float
    train_seconds: float | None
    aggregation_seconds: float
    evaluation_seconds: float
    accepted: int
    rejected: int
    failed: int
    evaluations: int
    round_failed: bool = False
    reason: str = ""


@dataclass(frozen=True)
class ClientRow:
    """A line of ``clients.csv``: one client in one round."""

    round: int
    partition_id: int
    client_id: int
    malicious: bool
    score: float | None
    normalized: float | None
    contribution: float | None
    weight: float | None
    accumulative_influence: float | None
    num_examples: int | float | None
    train_seconds: float | None
    train_loss: float | None
    rejection: str
    note: str = ""


# What a run writes, and a new run in the same place removes; nothing else there is touched.
RESULT_FILES = (
    "summary.json",
    "config.json",
    "rounds.csv",
    "clients.csv",
    "model.pt",
    "accuracy.png",
    "contributions.png",
    "report.md",
)

_Row = TypeVar("_Row", "RoundRow", "ClientRow")
OnRow = Callable[[RoundRow], None]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file; a last line cut off by a crash is left out."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


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
    ) -> None:
        self.config = config
        self.run_dir = config.run_dir
        self._is_malicious = is_malicious
        self._on_row = on_row
        self._started = time.perf_counter()
        self._report: RoundReport | None = None
        self.rounds: list[RoundRow] = []
        self.clients: list[ClientRow] = []
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

    def on_evaluation(
        self,
        server_round: int,
        test: Evaluation | None = None,
        validation: Evaluation | None = None,
        *,
        evaluation_seconds: float = 0.0,
        reason: str = "",
    ) -> None:
        """Write a round's line once its model is evaluated; without, where it is not its turn.

        ``reason`` says why there is no evaluation although there should be one.
        """
        report = (
            self._report if self._report and self._report.server_round == server_round else None
        )
        seconds = [c.train_seconds for c in report.clients if c.train_seconds] if report else []
        row = RoundRow(
            round=server_round,
            test_accuracy=test.accuracy if test else None,
            test_loss=test.loss if test else None,
            validation_accuracy=validation.accuracy if validation else None,
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
        }

    def load_state_dict(self, state: Mapping[str, Any], last_round: int) -> None:
        """Take over what :meth:`state_dict` returned, and write it in place of what is there.

        Raises
        ------
        ValueError, TypeError, KeyError
            If the lines are not those of a run up to this round.
        """
        rounds = [_row(RoundRow, row) for row in state["rounds"]]
        clients = [_row(ClientRow, row) for row in state["clients"]]
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

    def finish(self, state_dict: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write the model, and ``summary.json`` last; return the summary."""
        buffer = BytesIO()
        torch.save(dict(state_dict), buffer)
        write_atomically(self.run_dir / "model.pt", buffer.getvalue())
        summary = summarize(self.config, self.rounds, self.clients)
        summary["seconds"] = round(time.perf_counter() - self._started, 3)
        summary["machine"] = describe_machine(self.config.device)
        return summary

    def complete(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as completed."""
        write_json(self.run_dir / "summary.json", summary)

    def _write_header(self, name: str, row: type) -> None:
        names = [field.name for field in dataclasses.fields(row)]
        write_atomically(self.run_dir / name, ",".join(names) + "\n")

    def _append(self, name: str, rows: Iterable[RoundRow | ClientRow]) -> None:
        path = self.run_dir / name
        with writing(path), path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([_cell(v) for v in dataclasses.astuple(row)] for row in rows)


def summarize(
    config: RunConfig, rounds: list[RoundRow], clients: list[ClientRow]
) -> dict[str, Any]:
    """Return a run's result in a few figures.

    ``malicious_weight_share`` is the share of all aggregation weight that went to malicious
    clients; ``detection_auc`` the area under the ROC curve of "low contribution means malicious"
    over the clients that took part, with each client's last contribution. Either is ``None``
    where it is not defined. ``unnamed_members`` never said which partition they hold.
    """
    evaluated = [row for row in rounds if row.test_accuracy is not None and row.round > 0]
    accuracies = [row.test_accuracy for row in evaluated if row.test_accuracy is not None]
    weighed = [row for row in clients if row.weight is not None]
    total = sum(row.weight or 0.0 for row in weighed)
    bad = sum(row.weight or 0.0 for row in weighed if row.malicious)
    any_malicious = any(row.malicious for row in clients)
    trained = [row.train_seconds for row in clients if row.train_seconds is not None]
    last = evaluated[-1] if evaluated else None
    return {
        "config": config.to_mapping(),
        "rounds": max((row.round for row in rounds), default=0),
        "test_accuracy": last.test_accuracy if last else None,
        "test_accuracy_last_ten": statistics.fmean(accuracies[-10:]) if accuracies else None,
        "test_accuracy_best": max(accuracies, default=None),
        "validation_accuracy": last.validation_accuracy if last else None,
        "malicious_weight_share": bad / total if total > 0 and any_malicious else None,
        "detection_auc": detection_auc(clients),
        "train_seconds_per_client": statistics.fmean(trained) if trained else None,
        "train_seconds_total": sum(trained),
        "aggregation_seconds_per_round": _mean(
            row.aggregation_seconds for row in rounds if row.round
        ),
        "evaluations_per_round": _mean(row.evaluations for row in rounds if row.round),
        "accepted": sum(row.accepted for row in rounds),
        "rejected": sum(row.rejected for row in rounds),
        "failed": sum(row.failed for row in rounds),
        "failed_rounds": sum(map(is_failed, rounds)),
        "last_round_failed": bool(rounds) and is_failed(rounds[-1]),
        "unnamed_members": len(
            {row.client_id for row in clients if row.partition_id == UNKNOWN_PARTITION}
        ),
    }


def is_failed(row: RoundRow) -> bool:
    """Return whether a round left the model as it was, or most of its clients failed."""
    asked = row.accepted + row.rejected + row.failed
    return row.round_failed or 2 * row.failed > asked


def last_contributions(clients: Iterable[ClientRow]) -> dict[int, ClientRow]:
    """Return each client's latest row that has a contribution, by node id."""
    return {row.client_id: row for row in clients if row.contribution is not None}


def detection_auc(clients: Iterable[ClientRow]) -> float | None:
    """Return how well low contributions tell malicious clients from honest ones, in [0, 1]."""
    last = list(last_contributions(clients).values())
    if len({row.malicious for row in last}) < 2:
        return None
    # Imported here: it takes a second, of every client and command line.
    from sklearn.metrics import roc_auc_score

    scores = [-(row.contribution or 0.0) for row in last]
    return float(roc_auc_score([row.malicious for row in last], scores))


def describe_machine(device: str) -> dict[str, Any]:
    """Return versions and hardware, for a figure to be read with."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "flwr": version("flwr"),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "device": device,
    }


def _row(kind: type[_Row], values: Mapping[str, Any]) -> _Row:
    """Return a line of a file from its values by column, every one of the column's type."""
    row = kind(**values)
    for name, wanted in get_type_hints(kind).items():
        if not isinstance(getattr(row, name), wanted):
            raise ValueError(f"its records have {name} = {getattr(row, name)!r}")
    return row


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.fmean(listed) if listed else None


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    # A spreadsheet would take such a text, which a client may have written, for a formula.
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value
