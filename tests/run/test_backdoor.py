from __future__ import annotations

import json

from client_app import app as client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid


def run(output_dir, **overrides):
    settings = {
        "num-clients": 8,
        "fraction-train": 1.0,
        "num-server-rounds": 4,
        "eval-every": 2,
        "output-dir": str(output_dir),
        "device": "cpu",
        "strategy": "fedavg",
        "malicious-fraction": 0.5,
    }
    own = {key.replace("_", "-"): value for key, value in overrides.items()}
    config = RunConfig.from_run_config(default_run_config() | settings | own)
    return run_federation(LocalGrid(client_app, 8), config)


def test_a_backdoors_success_is_in_rounds_summary_and_report(tmp_path):
    run_dir = run(tmp_path, attack="pixel-trigger")
    rows = read_rows(run_dir / "rounds.csv")
    assert [bool(row["attack_success"]) for row in rows] == [True, False, True, False, True]
    assert float(rows[0]["attack_success"]) < 0.5 < float(rows[-1]["attack_success"])
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["attack_success"] == float(rows[-1]["attack_success"])
    assert summary["test_accuracy"] > 0.5  # the model is still of use
    assert "| attack success rate |" in (run_dir / "report.md").read_text()
