"""Whole federations in this process, by a run config."""

from __future__ import annotations

import logging
import time

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from client_app import app as client_app
from fedif_flower.errors import TrainingFailedError
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.provenance import code_hash, tensors_hash
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from tests.run.resuming import CLIENTS, run, run_config


def test_a_run_learns_and_leaves_everything_behind(tmp_path):
    rows = []
    own = {"num_server_rounds": 15, "eval_every": 5, "local_epochs": 3, "num_clients": 10}
    config = run_config(tmp_path, **own)
    folder = RunFolder(run_federation(LocalGrid(client_app, 10), config, rows.append))
    summary = folder.summary.read()
    assert summary["test_accuracy"] > 0.8
    assert summary["detection_auc"] > 0.8
    assert summary["malicious_weight_share"] < 0.5
    assert [row.round for row in rows] == list(range(16))
    assert [row.round for row in rows if "test_accuracy" in row.metrics] == [0, 5, 10, 15]
    clients = folder.clients.read()
    assert len(clients) == 15 * 5
    assert {row["malicious"] for row in clients} == {"0", "1"}
    origin, server = folder.provenance.read(), load_task(config)
    assert origin["settings_sha256"] == server.config.digest()
    assert origin["validation_sha256"] == tensors_hash(server.validation_data)
    assert origin["code_sha256"] == code_hash()
    said = folder.live.read()
    assert (said["phase"], said["round"], said["num_answered"]) == ("finished", 15, 5)
    assert {n["client_id"] for n in said["asked"]} == set(said["answered"])
    assert "state.json" not in folder.results()


def test_a_backdoors_success_is_in_rounds_summary_and_report(tmp_path):
    own = {"attack": "pixel-trigger", "malicious_fraction": 0.5, "strategy": "fedavg"}
    folder = RunFolder(run(run_config(tmp_path, num_server_rounds=4, eval_every=2, **own)))
    rows = folder.rounds.read()
    assert [bool(row["attack_success"]) for row in rows] == [True, False, True, False, True]
    assert float(rows[0]["attack_success"]) < 0.5 < float(rows[-1]["attack_success"])
    assert folder.summary.read()["attack_success"] == float(rows[-1]["attack_success"])
    assert "| attack success rate |" in folder.report.read_text()


def test_clients_that_always_fail_end_the_run_with_an_error(tmp_path):
    config = run_config(tmp_path, max_failed_rounds=2)
    with pytest.raises(TrainingFailedError, match="2 rounds in a row"):
        run(config, LocalGrid(client_app, CLIENTS, silent=range(CLIENTS)))
    assert not (config.run_dir / "summary.json").exists()
    rows = read_rows(config.run_dir / "rounds.csv")
    assert rows[-1]["round_failed"] == "1"


class Remote(LocalGrid):
    """As real nodes are: what they send has to be looked at."""

    reliable = False

    def __init__(self, client=client_app, **more) -> None:
        super().__init__(client, CLIENTS, **more)
        self.questions: list[bool] = []

    def push_messages(self, messages):
        messages = list(messages)
        asked = (m for m in messages if m.metadata.message_type == "query")
        self.questions += ["config" in message.content for message in asked]
        return super().push_messages(messages)


@pytest.fixture(autouse=True)
def told(caplog):
    caplog.set_level(logging.INFO, "fedif_flower.run.preflight")
    return caplog


def test_every_member_is_asked_once_and_what_it_found_is_told(tmp_path, told):
    grid = Remote()
    run(run_config(tmp_path, num_server_rounds=1), grid)
    assert grid.questions == [True] * CLIENTS
    lines = [message for message in told.messages if "data: " in message]
    assert len(lines) == CLIENTS
    assert lines[0].startswith("node 1000: data: ") or lines[0].startswith("client 0 (node 1000)")
    for check in ("data", "training", "signing-key", "masking", "clock"):
        assert all(f"{check}: " in line for line in lines)


UNFIT = {2: {"data-dir": "/nowhere", "num-partitions": 3}}  # Fewer parts than clients.


def test_a_run_does_not_begin_with_a_member_that_cannot_take_part(tmp_path, told):
    config = run_config(tmp_path, num_server_rounds=1)
    words = (
        r"1 of 6 members cannot take part: client 2 \(node 1002\): data: num-clients = 6, but this "
        "node is one of 3 partitions.* start-without = 'unfit' begins all the same"
    )
    with pytest.raises(TrainingFailedError, match=words):
        run_federation(Remote(node_configs=UNFIT), config)
    assert not config.run_dir.exists()
    (line,) = [message for message in told.messages if "data failed: " in message]
    assert "; to do: put the data where data-dir" in line


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"data": "\x1b" * 5_000}, "node warning: unreadable"),
        ({"time": time.time() + 3600}, "clock warning: 3"),
        ({"time": float("nan")}, ""),
    ],
)
def test_a_hostile_answer_stops_nothing_and_is_bounded(tmp_path, told, answer, said):
    def client(message: Message, context):
        reply = client_app(message, context)
        if message.metadata.message_type == "query" and context.node_id == 1003:
            content = RecordDict({**reply.content, "preflight": ConfigRecord(answer)})
            return Message(content, reply_to=message)
        return reply

    run(run_config(tmp_path, num_server_rounds=1), Remote(client))
    about = [m for m in told.messages if "node 1003" in m and "to do: " in m]
    assert (len(about), all(said in message for message in about)) == (bool(said), True)
    assert all(len(message) < 1000 and message.isprintable() for message in about)
