"""What a round's record says of everybody who was asked."""

from __future__ import annotations

import pytest

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import RefusedReply
from fedif_flower.server.record import ClientReport, Round

NODES = [ClientNode(place, 1000 + place) for place in range(8)]
STATUSES = ["accepted", "accepted", "refused", "failed", "away", "revoked", "late", "late"]


def reports(**others: object) -> tuple[ClientReport, ...]:
    """Return a report of each status."""
    pairs = zip(NODES, STATUSES, strict=True)
    return tuple(ClientReport(node, status=status, **others) for node, status in pairs)


def test_everybody_asked_is_counted_once() -> None:
    counts = Round(1, reports()).counts
    # Who is away or no longer registered has sent nothing, as one that failed.
    assert counts == {"accepted": 2, "rejected": 1, "failed": 3, "late": 2}
    assert sum(counts.values()) == len(NODES)


def test_a_line_has_what_was_measured_and_nothing_else() -> None:
    line = Round(3, num_online=5, losses=(0.5, 0.25), metrics={"test_accuracy": 0.75}).line()
    assert (line["round"], line["online"], line["losses"]) == (3, 5, "0.5 0.25")
    assert line["test_accuracy"] == 0.75
    assert [line[name] for name in line if name.endswith("_seconds")] == [0.0, None, 0.0, 0.0]
    assert (line["status"], line["round_failed"]) == ("advanced", False)


def test_the_seconds_of_training_are_the_mean_of_those_who_say() -> None:
    said = [ClientReport(NODES[0], train_seconds=2.0), ClientReport(NODES[1], train_seconds=4.0)]
    assert Round(1, (*said, ClientReport(NODES[2]))).train_seconds == 3.0
    assert Round(1, (*said, ClientReport(NODES[2], train_seconds=0.0))).train_seconds == 2.0
    assert Round(1, (ClientReport(NODES[2]),)).train_seconds is None


@pytest.mark.parametrize(
    ("status", "is_failure"), [("failed", True), ("refused", True), ("away", False)]
)
def test_who_failed_late_was_asked_in_an_earlier_round(status: str, is_failure: bool) -> None:
    now, earlier = NODES[:2]
    refused = [RefusedReply(node, "why", status) for node in (now, earlier)]
    record = Round(2, members=[now], at_work=[earlier], refused=refused)
    assert record.failed_late == [earlier] * is_failure
    assert record.refused_of_members == refused[:1]


def test_clients_are_kept_when_what_is_large_is_let_go() -> None:
    record = Round(1, reports(), members=NODES, refused=[RefusedReply(NODES[2], "", "refused")])
    record.release()
    assert (record.counts["accepted"], len(record.members)) == (2, len(NODES))
    assert not record.refused
