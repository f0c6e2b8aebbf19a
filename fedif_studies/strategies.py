"""Every strategy on the same federation: digits, 100 clients, half with flipped labels.

Runs in this process, without Ray, and prints the table of ``docs/methods/index.md``: no lengths are
bounded, as in the paper.
"""

from __future__ import annotations

import csv
import json
import logging
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from fedif_flower.client.app import app as client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar
from fedif_flower.strategies.registry import STRATEGIES
from fedif_studies.rows import RESULTS, machine

COLUMNS = {
    "test_accuracy": ("test accuracy", 100, ".1f"),
    "test_accuracy_last_ten": ("mean of last ten", 100, ".1f"),
    "detection_auc": ("AUC", 1, ".3f"),
    "malicious_weight_share": ("weight of malicious, %", 100, ".1f"),
    "aggregation_seconds_per_round": ("aggregation, ms", 1000, ".1f"),
    "evaluations_per_round": ("evaluations", 1, ".0f"),
}


def measure(strategy: str, rounds: int, output_dir: str) -> dict[str, Any]:
    """Return the summary of one run."""
    settings: dict[str, Scalar] = {
        "strategy": strategy,
        "attack": "label-noise",
        "num-server-rounds": rounds,
        "output-dir": output_dir,
        "run-name": strategy,
        "device": "cpu",
        "checkpoint-every": 0,
        "update-clipping": 0.0,  # as in the paper
    }
    config = RunConfig.from_run_config(default_run_config() | settings)
    run_dir = run_federation(LocalGrid(client_app, config.num_clients), config)
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def main(
    rounds: Annotated[int, typer.Option(help="rounds of each run")] = 30,
    write: Annotated[bool, typer.Option(help="write docs/results/strategies.csv")] = False,
) -> None:
    """Print a Markdown table with one line per strategy."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| strategy |", " | ".join(title for title, _, _ in COLUMNS.values()), "|")
    print("| --- |", " | ".join("---:" for _ in COLUMNS), "|")
    rows = []
    with TemporaryDirectory() as output_dir:
        for strategy in STRATEGIES:
            summary = measure(strategy, rounds, output_dir)
            rows.append([strategy, rounds, *(summary[name] for name in COLUMNS)])
            shown = [
                "-" if summary[name] is None else format(factor * summary[name], form)
                for name, (_, factor, form) in COLUMNS.items()
            ]
            print(f"| `{strategy}` |", " | ".join(shown), "|", flush=True)
    if write:
        about = machine()
        with (RESULTS / "strategies.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["strategy", "rounds", *COLUMNS, *about])
            writer.writerows([*row, *about.values()] for row in rows)


if __name__ == "__main__":
    typer.run(main)
