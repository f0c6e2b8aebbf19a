"""``python -m tests.goldens``: write what some short runs come to into ``goldens.json``.

Each is a whole federation in this process, one for each family of strategy and for each part of a
run that changes its figures. The same figures after a change that is to change none of them show
that it did not; where one is to change, the commit says why that is right.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import Tensor

from client_app import app as client_app
from fedif_consortium.parts import run_parts
from fedif_flower.aggregators import Krum
from fedif_flower.round import RoundUpdates
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.run.writer import OnRow
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.robust_rule import Rule
from tests.clocked_grid import ClockedGrid

FILE = Path(__file__).with_name("goldens.json")
CLIENTS = 8
ROUNDS = 4
SETTINGS = {
    "num-clients": CLIENTS,
    "num-server-rounds": ROUNDS,
    "fraction-train": 0.75,
    "local-epochs": 1,
    "attack": "sign-flip",
    "malicious-fraction": 0.25,
    "checkpoint-every": 0,
    "run-name": "run",
    "device": "cpu",
}
MOMENTUM = {
    "server-optimizer": "fedavgm",
    "fedavgm.momentum": 0.5,
    "fedavgm.learning-rate": 0.5,
}
RUNS: Mapping[str, Mapping[str, object]] = {
    "fedif": {},
    "fedif-attribution": {"attribution": "simpson", "credit.per-class": True},
    "fedavg-momentum": {"strategy": "fedavg", **MOMENTUM, "attribution": "gauss2"},
    "fedprox": {"strategy": "fedprox", "momentum": 0.0},
    "scaffold": {"strategy": "fedavg", "local-method": "scaffold", "momentum": 0.0},
    "afedsv": {"strategy": "afedsv", "malicious-fraction": 0.5},
    "influence-descent": {"strategy": "influence-descent", "attack": "label-noise"},
    "fltrust": {"strategy": "fltrust"},
    "multikrum": {"strategy": "tests.goldens:multi_krum"},  # A user's own rule, of steps.
    "multikrum-weights": {"strategy": "multikrum"},
    "median-mixing": {"strategy": "median", "neighbour-mixing": True, "max-update-length": 0.5},
    "trimmed-mean-buckets": {"strategy": "trimmed-mean", "bucketing": 2},
    "flame": {"strategy": "flame", "fraction-train": 1.0},
    "autobant": {"strategy": "fedif_studies.autobant:AutoBant", "attack": "gradient-noise"},
    "quarantine": {
        "strategy": "fedavg",
        "fraction-train": 1.0,
        "num-server-rounds": 8,
        "attribution": "simpson",
        "quarantine.on": True,
    },
    "masked": {"masking.mode": "trial", "attribution": "trapezoid", "fraction-train": 1.0},
    "late": {"pace.late-rounds": 3, "pace.quorum": 0.5, "fraction-train": 1.0},
}
# What a run draws anew each time: who borrows of whom is estimated from random signs.
DRAWN = {"masked": "attribution.csv credited"}
# Of clients 0, 1 ... in the run of late replies: the slowest miss a round, then come.
SECONDS = (1.0, 2.0, 3.0, 1.5, 9.0, 2.5, 5.0, 4.0)
COLUMNS = {
    "rounds.csv": ("test_loss", "validation_loss", "accepted", "status"),
    "clients.csv": ("partition_id", "weight", "score", "weight_score", "train_loss", "status"),
    "attribution.csv": ("contribution", "credited"),
    "quarantine.csv": ("client_id", "server_round", "until_round"),
}


def multi_krum(malicious_fraction: float, clients_per_round: int) -> Rule:
    """Return Multi-Krum whose chosen updates count by their examples, as a rule of steps."""

    def step(updates: RoundUpdates) -> Tensor:
        malicious = round(malicious_fraction * clients_per_round)
        krum = Krum(malicious / updates.num_clients, clients_per_round - malicious)
        chosen = krum(updates).weights
        weights = chosen * updates.num_examples
        return (weights / weights.sum()).to(updates.client_updates) @ updates.client_updates

    return step


Golden = dict[str, list[float | str]]


def run(name: str, folder: Path, on_row: OnRow | None = None, **more: object) -> Path:
    """Run one federation and return its folder."""
    settings = {**SETTINGS, **RUNS[name], "output-dir": str(folder), **more}
    config = RunConfig.from_run_config(settings, run_parts())
    late = config.pace.late_rounds > 0
    grid = ClockedGrid(client_app, CLIENTS, SECONDS.__getitem__) if late else None
    with patch("fedif_flower.run.plots.save_figure"):
        return run_federation(
            grid or LocalGrid(client_app, CLIENTS), config, on_row, parts=run_parts()
        )


def golden(run_dir: Path) -> Golden:
    """Return a run's figures: columns of its tables, and of each parameter five numbers."""
    found: Golden = {}
    for table, columns in COLUMNS.items():
        rows = read_rows(run_dir / table) if (run_dir / table).exists() else []
        for column in columns if rows else ():
            found[f"{table} {column}"] = [_value(row[column]) for row in rows]
    model = torch.load(run_dir / "model.pt", weights_only=True)
    for key, value in model.items():
        flat = value.double().flatten()
        numbers = (flat.sum(), flat.norm(), flat[0], flat[len(flat) // 2], flat[-1])
        found[f"model.pt {key}"] = [_value(f"{number}") for number in map(float, numbers)]
    return found


def _value(text: str) -> float | str:
    try:
        return float(f"{float(text):.8g}")
    except ValueError:
        return text


def main() -> None:
    """Run them all and replace the file."""
    logging.disable(logging.WARNING)
    found = {}
    for name in RUNS:
        with TemporaryDirectory() as folder:
            figures = golden(run(name, Path(folder)))
        figures.pop(DRAWN.get(name, ""), None)
        found[name] = figures
    lines = (
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in columns.items())
        + "\n }"
        for name, columns in found.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
