from __future__ import annotations

import pytest

from client_app import app as client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid

SETTINGS = {
    "num-clients": 10,
    "fraction-train": 1.0,
    "local-epochs": 2,
    "num-server-rounds": 12,
    "strategy": "fedavg",
    "attack": "sign-flip",
    "malicious-fraction": 0.2,
    "attribution": "simpson",
    "policy": "quarantine",
    "eval-every": 12,
    "device": "cpu",
}


def run(tmp_path, **settings):
    config = RunConfig.from_run_config(
        {**default_run_config(), **SETTINGS, "output-dir": str(tmp_path), **settings}
    )
    return run_federation(LocalGrid(client_app, 10), config)


@pytest.mark.all
def test_members_that_flip_signs_are_left_out_for_as_long_as_the_records_say(tmp_path):
    run_dir = run(tmp_path)
    rows = read_rows(run_dir / "clients.csv")
    malicious = {row["client_id"] for row in rows if row["malicious"] == "1"}
    decisions = read_rows(run_dir / "quarantine.csv")
    assert {row["client_id"] for row in decisions} == malicious
    for decision in decisions:
        first, until = int(decision["server_round"]), int(decision["until_round"])
        drawn = {int(r["round"]) for r in rows if r["client_id"] == decision["client_id"]}
        assert not drawn & set(range(first, until))
        assert {*range(1, first)} <= drawn
    # A resumed run decides the same.
    whole = (run_dir / "clients.csv").read_text()
    for stopped in (run_dir / "checkpoints").glob("*.pt"):
        if stopped.name != "round-000010.pt":
            stopped.unlink()
    (run_dir / "quarantine.csv").unlink()
    run(tmp_path, resume="auto")
    assert read_rows(run_dir / "quarantine.csv") == decisions
    columns = ("round", "client_id", "weight", "train_loss")
    again = read_rows(run_dir / "clients.csv")
    assert [[r[c] for c in columns] for r in again] == [[r[c] for c in columns] for r in rows]
    assert whole.count("\n") == len(again) + 1
