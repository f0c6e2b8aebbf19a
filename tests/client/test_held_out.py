"""Members are warned, before they train, of classes that the held-out set can hardly value."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch.utils.data import DataLoader, TensorDataset

from fedif_flower.apps import client_app
from fedif_flower.client.held_out import labels_in
from fedif_flower.errors import ConfigError
from fedif_flower.messages.held_out_classes import (
    HELD_OUT_CLASSES_KEY,
    HeldOutClasses,
    read_held_out_classes,
)
from fedif_flower.messages.instructions import instructions
from fedif_flower.messages.preflight import QUESTION
from fedif_flower.registry import IN_PROCESS
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.parts import run_parts
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.tasks.task import Task
from tests.client.test_preflight import CONFIG, INPUTS, LABELS, make_task

WARNED = "fedif_flower.client.held_out"
WORDS = (
    "the held-out set that values members' updates: it has no usable example of the classes 2 (2 "
    "of this node's 6 examples): an update earns nothing for teaching the model these classes; it "
    "has fewer than 10 examples of the classes 0, 1 (4 of this node's 6 examples): what an update "
    "earns for teaching the model these classes is chance"
)


def elsewhere(app):
    """Return an app as in a process of a member's own: a LocalGrid's are the server's."""

    def call(message, context):
        token = IN_PROCESS.set(False)
        try:
            return app(message, context)
        finally:
            IN_PROCESS.reset(token)

    return call


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == WARNED]


def run_of(task: Task, folder, grid: LocalGrid, **more) -> None:
    settings = {"num-clients": 2, "fraction-train": 1.0, "num-server-rounds": 2, "device": "cpu"}
    settings |= {"output-dir": str(folder), "local-epochs": 1, **more}
    config = RunConfig.from_run_config(settings, run_parts())
    run_federation(grid, config, task=task, parts=run_parts())


def tiny(validation_labels=LABELS[:2]) -> Task:
    """A task whose server has one example of class 0, one of class 1, and none of class 2."""
    held_out = INPUTS[: len(validation_labels)] + torch.arange(4.0), validation_labels
    task = make_task(INPUTS + torch.arange(4.0))
    return replace(task, validation_data=lambda site: held_out, fingerprint="tiny")


def test_each_member_is_warned_once_before_it_trains(tmp_path, caplog):
    task = tiny()
    app = client_app(task)
    seen: list[int] = []  # How many warnings there were after each message.

    def client(message, context):
        reply = elsewhere(app)(message, context)
        if message.metadata.message_type == MessageType.TRAIN:
            seen.append(len(warnings(caplog)))
        return reply

    run_of(task, tmp_path, LocalGrid(client, 2))
    assert warnings(caplog) == [WORDS, WORDS]
    assert seen == [1, 2, 2, 2]


def test_a_simulation_has_it_in_the_servers_log_alone(tmp_path, caplog):
    task = tiny()
    with caplog.at_level(logging.INFO):
        run_of(task, tmp_path, LocalGrid(client_app(task), 2))
    assert warnings(caplog) == []
    assert "no held-out example counts for the classes 2" in caplog.text


def test_nobody_is_warned_where_each_class_has_enough(tmp_path, caplog):
    task = make_task((torch.arange(120.0).reshape(30, 4)), torch.arange(30) % 3)
    run_of(task, tmp_path, LocalGrid(elsewhere(client_app(task)), 2))
    assert warnings(caplog) == []


def asked(grid: LocalGrid, task: Task, told, run: str = "r") -> RecordDict:
    settings = instructions(CONFIG, task, run=run, more=told)
    content = RecordDict({QUESTION: settings})
    (reply,) = grid.send_and_receive([Message(content, 1000, MessageType.QUERY)])
    return reply.content


def test_a_member_that_is_asked_before_the_run_is_warned_then(caplog):
    task = make_task()
    grid = LocalGrid(elsewhere(client_app(task)), 2)
    told = HeldOutClasses.of(missing=[2], rare=[0, 1]).to_config()
    for _ in range(2):
        answer = asked(grid, task, told)
    assert warnings(caplog) == [WORDS]
    # The server is told nothing of it.
    assert dict(answer["preflight"])["data"] == "ok: 6 examples"
    asked(grid, task, told, run="another")
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"missing": ["x"], "rare": []}',
        # No tensor holds it.
        '{"missing": [9223372036854775808], "rare": []}',
        "[" * 9999,
        5,
    ],
)
def test_a_hostile_list_stops_nothing(caplog, text):
    task = make_task()
    grid = LocalGrid(elsewhere(client_app(task)), 2)
    answer = asked(grid, task, {HELD_OUT_CLASSES_KEY: text})
    assert dict(answer["preflight"])["data"] == "ok: 6 examples"
    (words,) = warnings(caplog)
    assert words.startswith("held-out-classes cannot be read")
    with pytest.raises(ConfigError, match="held-out-classes cannot be read"):
        read_held_out_classes(ConfigRecord({HELD_OUT_CLASSES_KEY: text}))


def test_of_very_many_classes_the_first_are_told_and_that_there_may_be_more(caplog):
    """The node has two examples of each of the classes 0, 1 and 2."""
    told = HeldOutClasses.of(missing=range(2, 100_003), rare=[0, 1]).to_config()
    assert read_held_out_classes(told).missing == tuple(range(2, 100_002))
    asked(LocalGrid(elsewhere(client_app(make_task())), 2), make_task(), told)
    (words,) = warnings(caplog)
    assert "of the classes 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 99990 more at least" in words
    assert "(at least 2 of this node's 6 examples): an update earns nothing" in words
    assert "of the classes 0, 1 (4 of this node's 6 examples)" in words


def test_an_empty_list_warns_of_nothing(caplog):
    task = make_task()
    grid = LocalGrid(elsewhere(client_app(task)), 2)
    asked(grid, task, {HELD_OUT_CLASSES_KEY: '{"missing": [], "rare": []}'})
    assert warnings(caplog) == []


def test_what_is_told_reads_as_it_was():
    classes = HeldOutClasses.of(missing=[3, 1], rare=[1, 2])
    assert (classes.missing, classes.rare) == ((1, 3), (2,))
    assert read_held_out_classes(ConfigRecord(classes.to_config())) == classes
    other = HeldOutClasses.of(missing=[2], rare=[0])
    assert classes.union(other) == HeldOutClasses((1, 2, 3), (0,))
    assert HeldOutClasses().to_config() == {}
    assert read_held_out_classes(ConfigRecord()) == HeldOutClasses()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((INPUTS, LABELS), LABELS),
        (TensorDataset(INPUTS, LABELS), LABELS),
        ([(INPUTS, LABELS), (INPUTS, LABELS)], torch.cat([LABELS, LABELS])),
        # Yes and no are 1 and 0.
        ((INPUTS, LABELS > 1), (LABELS > 1).long()),
        ((INPUTS, LABELS.float()), None),
        ((INPUTS, LABELS * 1j), None),
        ([(INPUTS, LABELS), INPUTS], None),
        ([], None),
        # Reading it would draw its order.
        (DataLoader(TensorDataset(INPUTS, LABELS), shuffle=True), None),
    ],
)
def test_labels_are_those_that_lie_in_memory(data, expected):
    labels = labels_in(data)
    assert (labels is None) == (expected is None)
    if labels is not None:
        torch.testing.assert_close(labels, expected)  # Of one type, too.
