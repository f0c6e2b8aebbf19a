"""Runs made by hand, as their folders stand there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder

NOW = 1_800_000_000.0


def client(server_round: int, client_id: int, status: str = "accepted", **more) -> dict[str, Any]:
    """Return a line of ``clients.csv``."""
    line = {"round": server_round, "partition_id": client_id % 100, "client_id": client_id}
    line |= {"malicious": False, "weight": 0.5 if status == "accepted" else 0.0}
    return {**line, "status": status, "rejection": "" if status == "accepted" else "why", **more}


def make_folder(
    path: Path,
    clients: Sequence[Mapping[str, Any]] = (),
    *,
    accuracies: Sequence[float | None] = (0.1, 0.5, 0.6, 0.7),
    names: Mapping[int, str] | None = None,
    live: Mapping[str, Any] | None = None,
    num_rounds: int = 10,
    **rounds,
) -> RunFolder:
    """Write a run's folder: an accuracy for each round from 0 on, each of 4 s; lines of clients."""
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path)
    config = {"num-server-rounds": num_rounds, "num-clients": 4, "fraction-train": 1.0}
    folder.config.write(RunConfig.from_run_config(RunConfig.defaults() | config).to_mapping())
    folder.rounds.begin()
    for number, accuracy in enumerate(accuracies):
        status = Counter(line["status"] for line in clients if line["round"] == number)
        line = {"round": number, "test_accuracy": accuracy, "test_loss": 1 / (number + 1)}
        line |= {"round_seconds": 3.0, "aggregation_seconds": 1.0, "round_failed": False}
        line |= {"accepted": status["accepted"], "rejected": status["refused"], "failed": 0}
        folder.rounds.append([line | {name: v[number] for name, v in rounds.items()}])
    folder.clients.begin()
    folder.clients.append(clients)
    folder.names.replace({"client_id": i, "name": name} for i, name in (names or {}).items())
    if live is not None:
        folder.live.write({"time": NOW, "started": 0.0, "phase": "training", **live})
    return folder


def asked(*client_ids: int, name: str = "") -> list[dict[str, Any]]:
    """Return members as ``state.json`` lists them."""
    return [{"client_id": i, "partition_id": i % 100, "name": name} for i in client_ids]
