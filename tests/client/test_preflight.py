from __future__ import annotations

import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedif_consortium.masking.masked_reply import MASKING_KEY, check_masking
from fedif_consortium.parts import client_parts
from fedif_flower.apps import client_app
from fedif_flower.client.preflight import tried
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import instructions
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import (
    ADVICE,
    Finding,
    Status,
    ask_for_findings,
    read_findings,
    to_record,
)
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import Task

CONFIG = ClientConfig(num_clients=2, learning_rate=0.05, device="cpu", model="mlp")


def make_task(inputs=None, targets=None, *, classes: int = 3, width: int = 4, **more) -> Task:
    """Return a task of 6 examples of 4 features."""
    inputs = torch.zeros(6, 4) if inputs is None else inputs
    targets = torch.arange(6) % 3 if targets is None else targets
    return Task(
        name="tiny",
        model=lambda: torch.nn.Linear(width, classes),
        client_data=lambda site: (inputs, targets),
        validation_data=lambda site: (inputs, targets),
        test_data=lambda site: (inputs, targets),
        num_classes=classes,
        **more,
    )


def ask(task: Task, masking: str = "off", question: bool = True, **node_config):
    """Ask a node as a run does; return its reply."""
    grid = LocalGrid(client_app(task, client_parts()), 2, node_configs={0: node_config})
    content = RecordDict()
    if question:
        content = ask_for_findings(instructions(CONFIG, task, run="r"), {MASKING_KEY: masking})
    (reply,) = grid.send_and_receive([Message(content, 1000, MessageType.QUERY)])
    return reply


def statuses(reply) -> dict[str, str]:
    found, _ = read_findings(reply.content)
    return {one.check: one.status.value for one in found}


def words(reply) -> dict[str, str]:
    found, _ = read_findings(reply.content)
    return {one.check: one.words for one in found}


def test_a_member_says_who_it_is_and_that_it_can_take_part():
    reply = ask(make_task())
    assert reply.content.config_records["node"]["partition-id"] == 0
    assert statuses(reply) == dict.fromkeys(
        ("data", "training", "signing-key", "masking"), "ok"
    ) | {"disk": statuses(reply)["disk"]}
    said = words(reply)
    assert said["data"] == "6 examples"
    assert said["training"] == "of one batch"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (make_task(targets=torch.tensor([0, 1, 2, 3, 0, 1])), "a label 3; the classes are 0 to 2"),
        (make_task(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)), "there are no examples"),
    ],
)
def test_data_that_do_not_fit_are_found_and_nothing_is_trained_on_them(task, said):
    reply = ask(task)
    assert (statuses(reply)["data"], said in words(reply)["data"]) == ("failed", True)
    assert (statuses(reply)["training"], words(reply)["training"]) == (
        "warning",
        "not tried: there are no data",
    )


@pytest.mark.parametrize(
    ("task", "status", "said"),
    [
        (make_task(width=5), "failed", "RuntimeError: "),
        (make_task(torch.full((6, 4), torch.nan)), "failed", "the loss of one batch is nan"),
        (make_task(train=lambda *_: 1.0), "ok", "not tried: the task trains by a function"),
    ],
)
def test_a_model_that_cannot_train_on_the_data_is_found(task, status, said):
    reply = ask(task)
    assert words(reply)["data"].startswith("6 examples")
    assert (statuses(reply)["training"], said in words(reply)["training"]) == (status, True)


@pytest.mark.parametrize(
    ("keeper_key", "masking", "status"),
    [
        (None, "off", "ok"),
        (None, "trial", "ok"),
        (None, "keeper", "failed"),
        ("09" * 32, "keeper", "ok"),
        ("09" * 32, "off", "failed"),
        ("09" * 32, "trial", "failed"),
    ],
)
def test_a_run_is_masked_as_the_member_wants_it(keeper_key, masking, status):
    node = NodeConfig(partition_id=0, keeper_key=keeper_key, signing_key="x")
    assert tried("masking", lambda: check_masking(node, masking)).status == status


def test_findings_are_read_back_and_hostile_ones_are_bounded():
    findings = [Finding(check, Status.OK, "well: yes") for check in ADVICE]
    content = RecordDict({"preflight": to_record(findings, 12.5)})
    assert read_findings(content) == (findings, 12.5)
    long = ConfigRecord({"data": "failed: " + "\x1b" * 10**6, "evil": "ok: x", "time": "now"})
    (one,), clock = read_findings(RecordDict({"preflight": long}))
    assert (one.check, one.status, len(one.words), clock) == ("data", "failed", 200, None)
    assert "\x1b" not in one.words
