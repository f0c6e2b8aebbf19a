"""``python -m tests.goldens NAME``: write what a short run comes to into ``goldens.json``.

Each is a whole federation in this process, one for each family of strategy and for each part of a
run that changes its figures. The same figures after a change that is to change none of them show
that it did not; where one is to change, the commit says why that is right.

Another processor rounds each step of training otherwise. So a figure that agrees with the one that
is written down, within :data:`TOLERANCE`, is left as it is: the file's difference shows what moved.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from unittest.mock import patch

import torch
import typer
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
# Eighty times the most that another instruction set and number of threads moved.
TOLERANCE = {"rel_tol": 1e-4, "abs_tol": 1e-5}
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


def agree(value: float | str, written: float | str) -> bool:
    """Return whether two figures are the same but for how a processor rounds."""
    if isinstance(value, str) or isinstance(written, str):
        return value == written
    return math.isclose(value, written, **TOLERANCE)


def differences(found: Golden, written: Golden) -> list[str]:
    """Return what a run came to in another way than is written down, a line for each figure."""
    lines = [f"{column}: only one of them has it" for column in sorted(found.keys() ^ written)]
    for column in found.keys() & written:
        values, expected = found[column], written[column]
        if len(values) != len(expected):
            lines.append(f"{column}: {len(values)} lines; written down: {len(expected)}")
            continue
        for line, (value, other) in enumerate(zip(values, expected, strict=True), start=1):
            if not agree(value, other):
                lines.append(f"{column}, line {line}: {value}; written down: {other}")
    return lines


def kept_where_they_agree(found: Golden, written: Golden) -> Golden:
    """Return a run's figures, those that agree with what is written down as they are there."""
    merged: Golden = {}
    for column, values in found.items():
        expected = written.get(column, [])
        if len(values) != len(expected):
            merged[column] = values
            continue
        pairs = zip(values, expected, strict=True)
        merged[column] = [other if agree(value, other) else value for value, other in pairs]
    return merged


def read_file() -> dict[str, Golden]:
    """Return what is written down, by the run's name."""
    written: dict[str, Golden] = json.loads(FILE.read_text())
    return written


def write_file(goldens: Mapping[str, Golden]) -> None:
    """Write the figures down, a line for each column."""
    runs = []
    for name in RUNS:
        columns = goldens.get(name, {}).items()
        lines = [f"  {json.dumps(column)}: {json.dumps(values)}" for column, values in columns]
        runs.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    FILE.write_text("{\n" + ",\n".join(runs) + "\n}\n")


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(RUNS)}")] = None,
    every: Annotated[bool, typer.Option("--all", help="all of them")] = False,
) -> None:
    """Run them, and write down the figures that moved."""
    chosen = list(RUNS) if every else names or []
    unknown = sorted(set(chosen) - set(RUNS))
    if unknown or not chosen:
        raise typer.BadParameter(f"{unknown}; allowed: --all, or some of {', '.join(RUNS)}")
    logging.disable(logging.WARNING)
    goldens = read_file()
    for name in chosen:
        with TemporaryDirectory() as folder:
            figures = golden(run(name, Path(folder)))
        figures.pop(DRAWN.get(name, ""), None)
        written = goldens.get(name, {})
        goldens[name] = kept_where_they_agree(figures, written)
        moved = differences(figures, written)
        print(f"{name}: {len(moved)} figures moved", *moved, sep="\n  ")
    write_file(goldens)


if __name__ == "__main__":
    typer.run(main)
