"""Real processes of which one is slow and one dies: a late reply counts, a missing one is named."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fedif_flower.run.rows import read_rows
from fedif_flower.statement.verify import verify
from tests.integration.deployed import REPOSITORY, Deployment, kill_group, marks, wait_for
from tests.integration.held import holding

pytestmark = marks

PARTITIONS = {"ada": 0, "bob": 1, "cyd": 2}
RUN_CONFIG = {
    "num-clients": 3,
    "fraction-train": 1.0,
    "num-server-rounds": 9,
    "local-epochs": 1,
    "strategy": "fedavg",  # FedIF may give a reply no weight.
    "round-quorum": 0.6,
    "late-rounds": 9,
    "least-participation": 1.0,
    "attribution": "simpson",
    "run-name": "unequal",
    "device": "cpu",
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("unequal")) as deployed:
        deployed.start_superlink()
        for name, partition in PARTITIONS.items():
            config = f"partition-id={partition} num-partitions=3"
            slow = holding(deployed.directory / "slow") if name == "cyd" else None
            deployed.start_node(name, config, environment=slow)
        yield deployed


def test_a_late_reply_counts_and_a_missing_one_is_named(deployment: Deployment) -> None:
    run_dir = deployment.server / "runs" / "unequal"
    run_id = deployment.submit(REPOSITORY, RUN_CONFIG)
    cyd = str(deployment.node_ids["cyd"])

    def lines_of_cyd() -> list[dict[str, str]]:
        return [row for row in read_rows(run_dir / "clients.csv") if row["client_id"] == cyd]

    def late_reply() -> dict[str, str] | None:
        counted = (row for row in lines_of_cyd() if row["asked_in"])
        return next(counted, None)

    wait_for("round 1", lambda: len(read_rows(run_dir / "rounds.csv")) > 1, timeout=300)
    hold = deployment.directory / "slow" / "hold"
    hold.touch()
    wait_for("cyd to be late", lambda: any(r["status"] == "late" for r in lines_of_cyd()), 300)
    hold.unlink()
    wait_for("its reply", late_reply, timeout=300)
    kill_group(deployment.nodes["ada"])
    status, details = deployment.outcome(run_id)

    late = late_reply()
    assert late is not None
    assert int(late["asked_in"]) < int(late["round"])
    assert (late["status"], float(late["weight"]) > 0) == ("accepted", True)
    rows = read_rows(run_dir / "attribution.csv")
    contributions = {(row["round"], row["client_id"]): row["contribution"] for row in rows}
    assert float(contributions[late["round"], cyd]) != 0.0

    assert status == "finished:failed"
    assert "the run is incomplete: 1 of 3 members took part in less than 100 %" in details
    _, _, report = (run_dir / "report.md").read_text().partition("## Completeness")
    assert "Incomplete" in report
    summary = json.loads((run_dir / "summary.json").read_text())
    (reason,) = summary["completeness"]["reasons"]
    assert reason.partition("their turns: ")[2].startswith("ada (")
    assert summary["completeness"]["late"] >= 1
    (ada,) = (line for line in report.splitlines() if line.startswith("| ada |"))
    missing, _, _, offline = (int(cell) for cell in ada.split(" | ")[4:8])
    assert missing + offline >= 1
    assert "Incomplete" in (run_dir / "statement" / "statement.html").read_text()
    verify(run_dir)
