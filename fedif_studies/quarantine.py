"""Whom a quarantine leaves out: honest members by mistake, malicious ones rightly; what it gains.

Federations of 30 members on the digits, 10 a round, with and without ``policy = "quarantine"``, and
of 10, all of them in every round, four of which attack in two or four rounds of eight.
The thresholds of :mod:`fedif_flower.strategies.quarantine` were chosen on seeds 0 and 1; the
figures are of other seeds. Results are appended as they come; what is there is not run again.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import Annotated
from unittest import mock

import torch
import typer

from fedif_flower.client import reply
from fedif_flower.client.app import app as client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar
from fedif_studies.rows import RESULTS, append_rows

OUTPUT = RESULTS / "quarantine.csv"
CLIENTS, ROUNDS = 30, 60
# Ten members that all take part, four of them malicious, in so many of eight rounds.
RHYTHMS: dict[str, dict[str, Scalar]] = {
    f"{attack} 40 %, {bad} of 8 rounds": {
        "attack": attack.replace(" ", "-"),
        "malicious-fraction": 0.4,
        "num-clients": 10,
        "fraction-train": 1.0,
        "num-server-rounds": 40,
    }
    for attack in ("label noise", "sign flip")
    for bad in (2, 4)
}
CASES: dict[str, dict[str, Scalar]] = {
    "honest": {},
    "honest, Dirichlet 0.3": {"dirichlet-alpha": 0.3},
    "label noise 30 %": {"attack": "label-noise", "malicious-fraction": 0.3},
    "sign flip 20 %": {"attack": "sign-flip", "malicious-fraction": 0.2},
    "on-off sign flip 20 %": {
        "attack": "sign-flip",
        "malicious-fraction": 0.2,
        "attack-first-round": 20,
        "attack-period": 20,
    },
    "gradient noise 30 %": {"attack": "gradient-noise", "malicious-fraction": 0.3},
    "pixel trigger 20 %": {"attack": "pixel-trigger", "malicious-fraction": 0.2},
    **RHYTHMS,
}
COLUMNS = (
    *("case", "strategy", "seed", "honest", "honest-left-out", "malicious", "malicious-left-out"),
    *("first-round", "test-last-ten", "test-last-ten-without"),
)


def run(folder: Path, strategy: str, seed: int, policy: str, settings: dict[str, Scalar]) -> Path:
    """Run one federation in this process."""
    config = RunConfig.from_run_config(
        {
            **default_run_config(),
            "num-clients": CLIENTS,
            "fraction-train": 1 / 3,
            "num-server-rounds": ROUNDS,
            "checkpoint-every": 0,
            "output-dir": str(folder),
            "run-name": policy,
            "strategy": strategy,
            "attribution": "simpson",
            "policy": policy,
            "device": "cpu",
            "seed": seed,
            **settings,
        }
    )
    return run_federation(LocalGrid(client_app, config.num_clients), config)


def rhythm_of(case: str) -> AbstractContextManager[object]:
    """Return what lets malicious members attack in the first rounds of every eight alone."""
    if case not in RHYTHMS:
        return nullcontext()
    bad = int(case.split(", ")[1].split(" ")[0])
    return mock.patch.object(reply, "attacks_now", lambda t, *_: (t - 1) % 8 < bad)


def last_ten(run_dir: Path) -> float:
    """Return the mean test accuracy of the last ten rounds."""
    rows = read_rows(run_dir / "rounds.csv")[-10:]
    return sum(float(row["test_accuracy"]) for row in rows) / len(rows)


def measure(case: str, strategy: str, seed: int) -> dict[str, object]:
    """Return one line: the same federation without and with the policy."""
    with tempfile.TemporaryDirectory() as name, rhythm_of(case):
        folder = Path(name)
        without = run(folder, strategy, seed, "none", CASES[case])
        within = run(folder, strategy, seed, "quarantine", CASES[case])
        rows = read_rows(within / "clients.csv")
        malicious = {row["client_id"] for row in rows if row["malicious"] == "1"}
        honest = {row["client_id"] for row in rows} - malicious
        decisions = RunFolder(within).quarantine.read()
        left_out = {row["client_id"] for row in decisions}
        first = [int(row["server_round"]) for row in decisions if row["client_id"] in malicious]
        return {
            "case": case,
            "strategy": strategy,
            "seed": seed,
            "honest": len(honest),
            "honest-left-out": len(left_out & honest),
            "malicious": len(malicious),
            "malicious-left-out": len(left_out & malicious),
            "first-round": min(first, default=""),
            "test-last-ten": round(last_ten(within), 4),
            "test-last-ten-without": round(last_ten(without), 4),
        }


def main(
    seeds: Annotated[int, typer.Option(help="so many, from 2 on")] = 3,
    output: Annotated[Path, typer.Option(help="CSV file to append to")] = OUTPUT,
) -> None:
    """Measure what is missing, then print sums over seeds."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    done = {(r["case"], r["strategy"], r["seed"]) for r in read_rows(output)}
    for seed, strategy, case in product(range(2, 2 + seeds), ("fedavg", "fedif"), CASES):
        if (case, strategy, str(seed)) not in done:
            line = measure(case, strategy, seed)
            append_rows(output, COLUMNS, [list(line.values())])
    rows = read_rows(output)
    for strategy, case in product(("fedavg", "fedif"), CASES):
        own = [r for r in rows if (r["case"], r["strategy"]) == (case, strategy)]
        sums = {name: sum(int(r[name]) for r in own) for name in COLUMNS[3:7]}
        gain = sum(float(r[COLUMNS[8]]) - float(r[COLUMNS[9]]) for r in own) / max(len(own), 1)
        print(
            f"{strategy:6} {case:24} honest left out {sums['honest-left-out']} of "
            f"{sums['honest']}, malicious {sums['malicious-left-out']} of {sums['malicious']}, "
            f"accuracy {100 * gain:+.1f} points"
        )


if __name__ == "__main__":
    typer.run(main)
