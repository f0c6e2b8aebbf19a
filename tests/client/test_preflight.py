from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch import nn

from fedif_consortium.masking.masked_reply import MASKING_KEY
from fedif_consortium.parts import client_parts
from fedif_flower.apps import client_app
from fedif_flower.client.preflight import check_disk
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import instructions
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import (
    ADVICE,
    QUESTION,
    Finding,
    Status,
    clock_finding,
    read_findings,
    seconds_ahead,
    to_record,
)
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import Task

CONFIG = ClientConfig(num_clients=2, learning_rate=0.05, device="cpu", model="mlp")


INPUTS, LABELS = torch.zeros(6, 4), torch.arange(6) % 3


def make_task(inputs=INPUTS, targets=LABELS, *, width: int = 4, **more) -> Task:
    """Return a task of three classes."""
    kinds = ("client_data", "validation_data", "test_data")
    given = inputs if isinstance(inputs, list) else (inputs, targets)
    data = dict.fromkeys(kinds, lambda site: given)
    return Task(name="tiny", model=lambda: torch.nn.Linear(width, 3), num_classes=3, **data, **more)


def ask(task: Task) -> RecordDict:
    """Ask a node as a run does; return what it answers."""
    grid = LocalGrid(client_app(task, client_parts()), 2)
    settings = instructions(CONFIG, task, run="r", more={MASKING_KEY: "off"})
    content = RecordDict({QUESTION: settings})
    (reply,) = grid.send_and_receive([Message(content, 1000, MessageType.QUERY)])
    return reply.content


LAST_NAN = INPUTS.clone()
LAST_NAN[5, 2] = torch.nan
# A batch has 16: nothing of the first counts for the loss.
UNLABELLED = torch.zeros(20, 4)
FIRST_IGNORED = torch.tensor([-100] * 17 + [0, 1, 2])
NO_LOSS = ("failed", "training loss was nan at step 1 of epoch 1; all its examples are finite: try")
WELL, NO_DATA = ("ok", "6 examples"), ("warning", "not tried: there are no data")


@pytest.mark.parametrize(
    ("task", "data", "training"),
    [
        (make_task(), WELL, ("ok", "one batch trained")),
        (make_task(width=5), WELL, ("failed", "RuntimeError: ")),
        (make_task(INPUTS + torch.nan), ("failed", "6 examples, NaN in 6 of them"), NO_DATA),
        (make_task(LAST_NAN), ("failed", "6 examples, NaN in 1 of them: fill"), NO_DATA),
        (
            make_task([(INPUTS, LABELS), (LAST_NAN, LABELS)]),
            ("failed", "NaN in 1 of them"),
            NO_DATA,
        ),
        (
            make_task(INPUTS.index_fill(0, torch.tensor([1, 4]), torch.inf)),
            ("warning", "6 examples, infinite numbers in 2 of them"),
            (
                "failed",
                "the training loss was nan at step 1 of epoch 1; infinite numbers in 2",
            ),
        ),
        (make_task(loss=lambda outputs, targets: outputs.sum() * torch.nan), WELL, NO_LOSS),
        (
            make_task(transform=lambda inputs: inputs / inputs.std()),
            WELL,
            ("failed", "behind transform of task 'tiny' there are NaN in 6 examples"),
        ),
        (make_task(LAST_NAN, transform=torch.nan_to_num), WELL, ("ok", "one batch trained")),
        (
            make_task(LAST_NAN, transform=torch.neg),
            WELL,
            ("failed", "behind transform of task 'tiny' there are NaN in 1 examples"),
        ),
        (make_task(train=lambda *_: 1.0), WELL, ("ok", "not tried: the task trains by a")),
        (make_task(targets=LABELS + 1), ("failed", "label 3; the classes are 0 to 2"), NO_DATA),
        (make_task(targets=LABELS - 1), ("failed", "label -1; the classes are 0 to 2"), NO_DATA),
        (
            make_task([(INPUTS, LABELS), (INPUTS, LABELS + 1)]),
            ("failed", "label 3; the classes are 0 to 2"),
            NO_DATA,
        ),
        # Of a loss of one's own it is not known whether it passes over a label below 0.
        (
            make_task(targets=LABELS - 1, loss=lambda outputs, targets: outputs.mean()),
            WELL,
            ("ok", "one batch trained"),
        ),
        (make_task(INPUTS[:0], LABELS[:0]), ("failed", "there are no examples"), NO_DATA),
        (make_task(UNLABELLED, FIRST_IGNORED), ("ok", "20 examples"), ("ok", "one batch trained")),
        (
            make_task(UNLABELLED, FIRST_IGNORED * 0 - 100),
            ("ok", "20 examples"),
            ("failed", "this client has none that counts"),
        ),
        (
            make_task(targets=LABELS + 1, loss=nn.CrossEntropyLoss(ignore_index=3)),
            WELL,
            ("ok", "one batch trained"),
        ),
    ],
)
def test_a_member_says_who_it_is_and_whether_it_can_take_part(task, data, training):
    answer = ask(task)
    assert answer["node"]["partition-id"] == 0
    found = {one.check: one for one in read_findings(answer)[0]}
    assert set(found) == {"data", "training", "disk", "signing-key", "masking"}
    for check, (status, words) in (("data", data), ("training", training)):
        assert (found[check].status, words in found[check].words) == (status, True)


@pytest.mark.parametrize(
    ("free", "is_writable", "words"),
    [
        (99, True, "{folder}: 99 MiB free; allowed: at least 100 MiB"),
        (5000, False, "statement-dir = '{folder}': {parent} cannot be written to"),
    ],
)
def test_a_disk_that_is_full_is_told_from_one_that_is_read_only(
    tmp_path, monkeypatch, free, is_writable, words
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * 2**20))
    monkeypatch.setattr(os, "access", lambda *_: is_writable)
    folder = tmp_path / "statements"
    with pytest.raises(ConfigError) as raised:
        check_disk(NodeConfig(partition_id=0, statement_dir=str(folder)))
    assert str(raised.value) == words.format(folder=folder, parent=tmp_path)


def test_findings_are_read_back_and_hostile_ones_are_bounded():
    findings = [Finding(check, Status.OK, "well: yes") for check in ADVICE]
    content = RecordDict({"preflight": to_record(findings, 12.5)})
    assert read_findings(content) == (findings, 12.5)
    long = ConfigRecord({"data": "failed: " + "\x1b" * 10**6, "evil": "ok: x", "time": "now"})
    (one,), clock = read_findings(RecordDict({"preflight": long}))
    assert (one.check, one.status, len(one.words), clock) == ("data", "failed", 200, None)
    assert "\x1b" not in one.words


@pytest.mark.parametrize(
    ("member", "server", "seconds"),
    [
        ((10.0, 12.0), (11.0, 20.0), 0.0),
        ((10.0, 12.0), (5.0, 8.0), 2.0),
        ((10.0, 12.0), (15.0, 16.0), -3.0),
    ],
)
def test_clocks_that_may_agree_are_called_right(member, server, seconds):
    assert seconds_ahead(member, server) == seconds


@pytest.mark.parametrize(
    ("seconds", "status", "words"),
    [
        (0.9, "ok", "in step with the server's"),
        (1.9, "ok", "2 s ahead of the server's"),
        (2.6, "warning", "3 s ahead of the server's"),  # Flower refuses 5 s.
        (-59.0, "ok", "59 s behind the server's"),
        (-61.0, "warning", "61 s behind the server's"),
    ],
)
def test_a_clock_is_warned_of_before_it_is_refused(seconds, status, words):
    assert clock_finding(seconds) == Finding("clock", status, words)
