from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedif_flower.apps import client_app
from fedif_flower.client import preflight
from fedif_flower.client.preflight import (
    check_disk,
    check_masking,
    check_signing_key,
    data_words,
    tried,
)
from fedif_flower.member.outgoing import LeavesSettings, OutgoingPolicy
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import instructions
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import (
    ADVICE,
    Finding,
    Status,
    ask_for_findings,
    clock_finding,
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
    grid = LocalGrid(client_app(task), 2, node_configs={0: node_config})
    content = RecordDict()
    if question:
        content = ask_for_findings(instructions(CONFIG, task, run="r"), masking)
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


def test_a_question_without_a_run_is_answered_as_ever():
    assert list(ask(make_task(), question=False).content) == ["node"]


def broken(site):
    raise FileNotFoundError("/srv/data is not mounted")


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


def test_data_that_the_local_method_cannot_use_are_found():
    task = make_task()
    listed = Task(**{**vars(task), "client_data": lambda site: [task.client_data(site)]})
    config = CONFIG.replace(local_method="fedcorr")
    node = NodeConfig.from_node_config({"partition-id": 0, "num-partitions": 2})
    found = {
        kind: preflight.check_member(config, node, lambda own=own: own, "off")[0]
        for kind, own in (("pair", task), ("list", listed))
    }
    assert found["pair"].status is Status.OK
    assert found["list"].status is Status.FAILED
    assert "local-method = 'fedcorr' needs data as a pair of tensors" in found["list"].words


def test_data_that_cannot_be_read_are_found():
    task = Task(**(vars(make_task()) | {"client_data": broken}))
    assert words(ask(task))["data"] == (
        "task 'tiny': client_data failed: FileNotFoundError: /srv/data is not mounted"
    )


def test_another_task_than_the_server_s_is_found():
    other = Task(**(vars(make_task()) | {"name": "other"}))
    grid = LocalGrid(client_app(other), 1)
    content = ask_for_findings(instructions(CONFIG, make_task(), run="r"), "off")
    (reply,) = grid.send_and_receive([Message(content, 1000, MessageType.QUERY)])
    assert words(reply)["data"] == "this member's task is 'other', the server's 'tiny'"


def test_a_check_leaves_torch_s_random_state_as_it_was():
    dropping = Task(
        **(
            vars(make_task())
            | {"model": lambda: torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(4, 3))}
        )
    )
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    ask(dropping)
    assert torch.equal(torch.rand(1), expected)


def test_labels_to_ignore_are_no_class():
    task, labels = make_task(), torch.tensor([-100, 0, 0, -100, 0, 0])
    assert data_words(task, (torch.zeros(6, 4), labels)) == "6 examples"


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("mebibytes", "status"), [(99, "failed"), (500, "warning"), (5000, "ok")])
def test_little_space_is_told_and_next_to_none_refused(monkeypatch, tmp_path, mebibytes, status):
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: Usage(0, 0, mebibytes * 2**20))
    node = NodeConfig(partition_id=0, statement_dir=str(tmp_path / "not" / "there"))
    found = tried("disk", lambda: check_disk(node))
    assert found.status == status
    assert f"{mebibytes:,} MiB free" in found.words


def test_a_folder_that_cannot_be_written_to_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight.os, "access", lambda *_: False)
    node = NodeConfig(partition_id=0, statement_dir=str(tmp_path))
    found = tried("disk", lambda: check_disk(node))
    assert (found.status, str(tmp_path) in found.words) == ("failed", True)


def test_the_signing_key_is_read(tmp_path):
    path = tmp_path / "node.key"
    node = NodeConfig(partition_id=0, signing_key=str(path))
    assert "No such file" in tried("signing-key", lambda: check_signing_key(node)).words
    path.write_text("no key")
    assert "is no private key" in tried("signing-key", lambda: check_signing_key(node)).words
    own = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o644)
    found = tried("signing-key", lambda: check_signing_key(node))
    assert (found.status, "chmod 600" in found.words) == ("warning", True)
    path.chmod(0o600)
    assert tried("signing-key", lambda: check_signing_key(node)).status == "ok"
    none = NodeConfig(partition_id=0)
    assert tried("signing-key", lambda: check_signing_key(none)).words == "none is named"


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


def test_whatever_a_check_raises_is_a_finding():
    def odd() -> str:
        raise RuntimeError("\x1b[2J")

    assert tried("data", odd) == Finding("data", Status.FAILED, "RuntimeError: \x1b[2J")


@pytest.mark.parametrize(
    ("seconds", "status", "told"),
    [(0.4, "ok", "the server's"), (-59.6, "ok", "60 s behind"), (61.0, "warning", "61 s ahead")],
)
def test_a_clock_that_is_off_is_told(seconds, status, told):
    found = clock_finding(seconds)
    assert (found.status, told in found.words) == (status, True)


def test_findings_are_read_back_and_hostile_ones_are_bounded():
    findings = [Finding(check, Status.OK, "well: yes") for check in ADVICE]
    content = RecordDict({"preflight": to_record(findings, 12.5)})
    assert read_findings(content) == (findings, 12.5)
    long = ConfigRecord({"data": "failed: " + "\x1b" * 10**6, "evil": "ok: x", "time": "now"})
    (one,), clock = read_findings(RecordDict({"preflight": long}))
    assert (one.check, one.status, len(one.words), clock) == ("data", "failed", 200, None)
    assert "\x1b" not in one.words


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"preflight": ConfigRecord({"data": "well"})}),
        RecordDict({"preflight": ConfigRecord({"data": [1, 2]})}),
    ],
)
def test_what_is_no_answer_is_a_warning(content):
    (one,), clock = read_findings(content)
    assert (one.check, one.status, clock) == ("node", Status.WARNING, None)


def test_all_that_is_answered_may_leave_a_guarded_node():
    """What the default of a member's policy lets out: all of it, as it is."""
    content = ask(make_task()).content
    assert OutgoingPolicy(LeavesSettings()).check(RecordDict(), content) == content


def test_there_is_advice_for_every_check():
    assert {*statuses(ask(make_task())), "node", "clock"} <= set(ADVICE)
