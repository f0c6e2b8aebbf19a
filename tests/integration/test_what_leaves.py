"""An approved app that sends more than its update, over TLS: each member's policy stops it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fedif_flower.member.node_log import NodeLine, read_node_log
from fedif_flower.member.outgoing import rounded
from fedif_flower.member.privacy import epsilon_of
from fedif_flower.run.rows import read_rows
from tests.integration.deployed import Deployment, copy_app, marks

pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
pytestmark = marks

# On ada's host it adds its training data to the model in the first round, on bob's it hides two
# bytes in a metric in all.
APP = """
import struct

import numpy as np
from flwr.app import Array

from fedif_flower.client.app import task_app


def steal(message, context, call_next):
    reply = call_next(message, context)
    arrays = reply.content.array_records.get("arrays")
    if not arrays:
        return reply
    partition = context.node_config["partition-id"]
    if partition == 0 and message.content["config"]["server-round"] == 1:
        arrays["patients"] = Array(np.zeros((90, 64), np.float32))
    if partition == 1:
        metrics = reply.content["metrics"]
        low = struct.pack("<d", metrics["train-loss"])
        metrics["train-loss"] = struct.unpack("<d", b"ID" + low[2:])[0]
    return reply


app = task_app(mods=[steal])
"""
# One reply costs an epsilon of 1.99, two 2.95.
NOISE = "clip-length = 0.01\nnoise-multiplier = 2.0\nmost-epsilon = 2.5"
POLICIES = {"ada": "", "bob": "", "cyd": f"[leaves]\n{NOISE}"}
ROUNDS = 2
RUN_CONFIG = {
    "num-clients": len(POLICIES),
    "fraction-train": 1.0,
    "num-server-rounds": ROUNDS,
    "round-timeout": 300.0,
    "run-name": "thief",
    "start-without": "unfit",
    "least-participation": 0.0,  # Who hides something in its replies is refused.
    "device": "cpu",
}


@dataclass(frozen=True)
class Run:
    """What came of it at the server, and at each member."""

    status: str
    rows: dict[str, list[dict[str, str]]]
    lines: dict[str, list[NodeLine]]
    log: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with Deployment(tmp_path_factory.mktemp("thief")) as deployed:
        here = deployed.directory
        app = copy_app(here / "app", APP)
        deployed.start_superlink()
        for partition_id, (name, text) in enumerate(POLICIES.items()):
            policy = here / name / "member-policy.toml"
            policy.parent.mkdir()
            policy.write_text(f"{text}\n[runs]\nunknown-keys = true\n")
            assert deployed.call("fedif", "app", "approve", app, "--policy", policy).returncode == 0
            config = f"partition-id={partition_id} num-partitions={len(POLICIES)}"
            deployed.start_node(name, config, options=("--policy", policy))
        deployed.wait_online(len(POLICIES))
        run_id = deployed.submit(app, RUN_CONFIG)
        status, _ = deployed.outcome(run_id)
        found = read_rows(deployed.server / "runs" / "thief" / "clients.csv")
        ids = {str(node_id): name for name, node_id in deployed.node_ids.items()}
        yield Run(
            status,
            {name: [row for row in found if ids[row["client_id"]] == name] for name in POLICIES},
            {n: read_node_log(here / n / "member-state" / "node-log").lines for n in POLICIES},
            deployed.run_log(run_id),
        )


def test_an_array_with_training_data_does_not_leave_and_is_named_at_the_member(run: Run) -> None:
    assert run.status == "finished:completed", run.log[-3000:]
    told = "refused by the member: an array is neither the model's nor on the list"
    assert [row["rejection"] for row in run.rows["ada"]] == [f"client error 6: {told}", ""]
    assert run.rows["ada"][1]["status"] == "accepted"
    assert "patients" not in run.log
    (refused,) = (line.entry for line in run.lines["ada"] if line.entry["decision"] == "refused")
    assert (refused["direction"], refused["kind"]) == ("out", "train")
    assert str(refused["reason"]).endswith("the list: arrays.patients")


def test_bytes_in_a_metric_are_rounded_away(run: Run) -> None:
    losses = [float(row["train_loss"]) for row in run.rows["bob"]]
    assert len(losses) == ROUNDS
    assert [rounded(loss, 4) for loss in losses] == losses


def test_a_member_answers_until_its_privacy_budget_is_spent(run: Run) -> None:
    first, second = run.rows["cyd"]
    assert first["status"] == "accepted"
    assert second["rejection"].endswith("refused by the member: the privacy budget is spent")
    (paid,) = (line.entry for line in run.lines["cyd"] if line.entry["kind"] == "privacy")
    assert paid["epsilon"] == pytest.approx(epsilon_of({2.0: 1}, 1e-5))
