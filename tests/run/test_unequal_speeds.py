"""A run over a grid that behaves as Flower's: replies come when they come, and once."""

from __future__ import annotations

import json
import threading

import pytest
from flwr.app import MessageType
from flwr.proto.node_pb2 import NodeInfo

from client_app import app as client_app
from fedif_flower.errors import IncompleteRunError
from fedif_flower.run.federation import run_federation
from fedif_flower.run.report import require_complete
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from tests.run.resuming import run_config

ADA, BOB, CYD = 1000, 1001, 1002
NAMES = {ADA: "ada", BOB: "bob", CYD: "cyd"}


class Remote(LocalGrid):
    """Three nodes that work in threads; cyd waits where it is told to, ada may die."""

    reliable = False

    def __init__(self) -> None:
        super().__init__(client_app, len(NAMES))
        self.free = threading.Event()
        self.free.set()
        self.dead: set[int] = set()
        self.one_at_a_time = threading.Lock()  # Real clients share no process.
        self.done: dict[str, list] = {}

    def get_node_ids(self):
        return [i for i in NAMES if i not in self.dead]

    def get_nodes(self):
        return [
            NodeInfo(node_id=i, name=NAMES[i], last_activated_at="09:00")
            for i in self.get_node_ids()
        ]

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        for message_id, message in zip(ids, messages, strict=True):
            threading.Thread(target=self.work, args=(message_id, message), daemon=True).start()
        return ids

    def work(self, message_id, message) -> None:
        node_id = message.metadata.dst_node_id
        if node_id == CYD and message.metadata.message_type == MessageType.TRAIN:
            self.free.wait()
        if node_id not in self.dead:
            with self.one_at_a_time:
                self.done[message_id] = super().pull_messages([message_id])

    def pull_messages(self, message_ids):
        return [reply for i in message_ids for reply in self.done.pop(i, [])]


def test_a_late_reply_counts_and_who_dies_is_named(tmp_path):
    grid = Remote()
    config = run_config(
        tmp_path,
        num_clients=3,
        fraction_train=1.0,
        num_server_rounds=9,
        strategy="fedavg",
        round_quorum=0.6,
        late_rounds=9,
        least_participation=1.0,
        attack="none",
        attribution="simpson",
    )

    def clients() -> list[dict[str, str]]:
        return read_rows(config.run_dir / "clients.csv")

    def on_row(row) -> None:
        if row.round == 1:
            grid.free.clear()
        elif any(r["client_id"] == str(CYD) and r["status"] == "late" for r in clients()):
            grid.free.set()
        if row.round > 1 and any(r["client_id"] == str(CYD) and r["asked_in"] for r in clients()):
            grid.dead.add(ADA)

    run_dir = run_federation(grid, config, on_row)
    late = next(r for r in clients() if r["client_id"] == str(CYD) and r["asked_in"])
    assert (late["status"], float(late["weight"]) > 0) == ("accepted", True)
    parts = read_rows(run_dir / "attribution.csv")
    (own,) = (p for p in parts if (p["round"], p["client_id"]) == (late["round"], str(CYD)))
    assert float(own["contribution"]) != 0.0
    found = json.loads((run_dir / "summary.json").read_text())["completeness"]
    assert found["verdict"] == "incomplete"
    assert found["late"] >= 1
    (reason,) = found["reasons"]
    assert reason.startswith("1 of 3 members took part in less than 100 % of their turns: ada (")
    assert "last seen: round" in reason
    gone = read_rows(run_dir / "attendance.csv")[-1]
    assert (gone["client_id"], gone["presence"], len(gone["at"])) == (str(ADA), "offline", 19)
    with pytest.raises(IncompleteRunError, match="ada"):
        require_complete(run_dir)
