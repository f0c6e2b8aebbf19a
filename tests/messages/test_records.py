"""The records of a message are read without leaving it in memory."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedif_flower.messages.arrays import arrays_of
from fedif_flower.messages.instructions import round_of
from fedif_flower.messages.records import records_of

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends: Flower writes it into each message."""
    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def message() -> Message:
    content = RecordDict(
        {
            "arrays": ArrayRecord({"weight": Array("float32", (1,), "numpy.ndarray", bytes(4))}),
            "metrics": MetricRecord({"num-examples": 3}),
            "config": ConfigRecord({"server-round": 7}),
        }
    )
    return Message(content, dst_node_id=1, message_type="train")


@pytest.mark.parametrize(
    ("kind", "name"), [(ArrayRecord, "arrays"), (MetricRecord, "metrics"), (ConfigRecord, "config")]
)
def test_records_of_one_kind(kind, name):
    content = message().content
    assert records_of(content, kind) == {name: content[name]}


@pytest.mark.parametrize(
    "read",
    [
        lambda sent: records_of(sent.content, ConfigRecord),
        lambda sent: arrays_of(sent.content),
        round_of,
    ],
)
def test_a_message_that_was_read_is_gone_once_nobody_has_it(read):
    sent = message()
    array = weakref.ref(sent.content["arrays"]["weight"])
    gc.disable()
    try:
        read(sent)
        del sent
        assert array() is None
    finally:
        gc.enable()


def test_nothing_reads_flowers_views_of_records_which_keep_the_message():
    view = re.compile(r"\.(array|config|metric)_records\b(?!``)")
    found = []
    for package in ("fedif_flower", "fedif_consortium", "fedif_studies", "examples"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
            if view.search(code):
                found.append(str(path.relative_to(REPOSITORY)))
    assert found == []
