"""Members with valid keys whose hosts send whatever they like: every kind, in one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedif_flower.run.rows import read_rows
from tests.integration import hostile_client
from tests.integration.deployed import REPOSITORY, Deployment, marks
from tests.strategies.hostile import HOSTILE

pytestmark = [*marks, pytest.mark.all]

# More of them cost processes, fewer cost rounds, ten seconds each.
MEMBERS = 7
OF_MEMBERS = [hostile_client.KINDS[member::MEMBERS] for member in range(MEMBERS)]
ROUNDS = len(OF_MEMBERS[0])


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    with Deployment(directory) as deployment:
        deployment.start_superlink()
        partitions = f"num-partitions={MEMBERS + 1}"
        deployment.start_node("honest", f"partition-id=0 {partitions}")
        victim = deployment.node_ids["honest"]
        for member, kinds in enumerate(OF_MEMBERS, start=1):
            folder = directory / "bin" / str(member)
            environment = hostile_client.install(folder, deployment.path, victim, kinds)
            config = f"partition-id={member} {partitions}"
            deployment.start_node(f"hostile-{member}", config, environment=environment)
        config = {
            "num-clients": MEMBERS + 1,
            "fraction-train": 1.0,
            "num-server-rounds": ROUNDS,
            "local-epochs": 1,
            "run-name": "hostile",
            # Seven of eight err in every round, and each is to send all its kinds.
            "max-failed-rounds": ROUNDS + 1,
            "max-paused-turns": 0,
            "least-participation": 0.0,
            "device": "cpu",
        }
        run_id = deployment.submit(REPOSITORY, config)
        status, details = deployment.outcome(run_id)
        assert status == "finished:completed", details + deployment.run_log(run_id)
    return deployment.server / "runs" / "hostile"


def test_every_kind_is_refused_with_its_reason(run_dir: Path) -> None:
    assert len(HOSTILE) >= 20
    rows = {(r["round"], r["partition_id"]): r for r in read_rows(run_dir / "clients.csv")}
    refused = {
        kind: rows[str(server_round), str(member)]
        for member, kinds in enumerate(OF_MEMBERS, start=1)
        for server_round, kind in enumerate(kinds, start=1)
    }
    assert set(refused) == set(hostile_client.KINDS)
    for kind, row in refused.items():
        assert row["rejection"], kind
        assert float(row["weight"]) == 0.0, kind
        assert row["weight_score"] == "", kind
    assert "NaN or Inf" in refused["nan"]["rejection"]
    assert "hostile" in refused[hostile_client.RAISED]["rejection"]
    assert "cannot be read" in refused[hostile_client.UNREADABLE]["rejection"]
    assert "comes from node" in refused[hostile_client.SPOOFED]["rejection"]


def test_the_honest_member_trains_on_and_is_blamed_for_nothing(run_dir: Path) -> None:
    rows = [r for r in read_rows(run_dir / "clients.csv") if r["partition_id"] == "0"]
    assert len(rows) == ROUNDS
    assert all(row["rejection"] == "" and float(row["weight"]) == 1.0 for row in rows)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["accepted"] == ROUNDS
    assert summary["test_accuracy"] > 0.5
    model = torch.load(run_dir / "model.pt", weights_only=True)
    assert all(torch.isfinite(value).all() for value in model.values())
