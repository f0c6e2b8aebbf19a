from __future__ import annotations

import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedif_consortium.page import PAGE_HEAD
from fedif_consortium.statement.delivery_messages import (
    Delivery,
    Receipt,
    read_delivery,
    read_receipt,
)


def test_what_is_sent_is_read_back():
    delivery = Delivery(PAGE_HEAD.encode() + b"page", b"manifest")
    assert read_delivery(delivery.to_content()) == delivery
    receipt = Receipt(kept=False, wanted=False, reason="no folder")
    assert read_receipt(receipt.to_content()) == receipt


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"statement": ConfigRecord({"kept": 1, "wanted": True, "reason": ""})}),
        RecordDict({"statement": ConfigRecord({"kept": True})}),
        RecordDict({"statement": MetricRecord({"kept": 1})}),
        RecordDict({"statement": ArrayRecord({})}),
    ],
)
def test_an_answer_that_is_nonsense_keeps_nothing(content):
    receipt = read_receipt(content)
    assert not receipt.kept
    assert receipt.wanted


def test_an_answer_s_text_is_made_fit_for_logs():
    reason = "\x1b[2J" + "x" * 10_000
    content = RecordDict(
        {"statement": ConfigRecord({"kept": False, "wanted": True, "reason": reason})}
    )
    read = read_receipt(content).reason
    assert read.startswith("?[2Jxxx")
    assert len(read) == 200
