"""Why a round's replies are not weighed, and whether the model that was sent is suspected."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from flwr.app import RecordDict

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.metrics import ClientRecords
from fedif_flower.messages.screening import RefusedReply
from fedif_flower.messages.workspace import AcceptedReply
from fedif_flower.server.obstacle import Obstacle, find_obstacle
from fedif_flower.server.record import Round

NODES = [ClientNode(place, 1000 + place) for place in range(4)]


def answered(
    examples: Sequence[float], statuses: Sequence[str] = (), *, late: bool = False
) -> Round:
    """Return a round with a usable reply for each number of examples, and others refused."""
    accepted = [
        AcceptedReply(node, ClientRecords(number, RecordDict()), 1.0, {})
        for node, number in zip(NODES, examples, strict=False)
    ]
    rest = NODES[len(accepted) :]
    refused = [
        RefusedReply(node, "why", status) for node, status in zip(rest, statuses, strict=False)
    ]
    members = NODES[: len(accepted)] if late else NODES
    return Round(1, members=members, accepted=accepted, refused=refused)


def test_enough_usable_replies_are_weighed() -> None:
    assert find_obstacle(answered([3.0, 5.0], ["refused"]), min_valid_replies=2) is None


@pytest.mark.parametrize(
    ("statuses", "is_suspect"), [(["refused", "failed"], True), (["failed", "away"], False)]
)
def test_the_model_is_suspected_where_nonsense_alone_comes(
    statuses: list[str], is_suspect: bool
) -> None:
    obstacle = find_obstacle(answered([], statuses), min_valid_replies=1)
    assert obstacle == Obstacle("0 valid replies, 1 needed", suspect=is_suspect)


def test_the_model_is_not_suspected_where_one_can_answer_or_nonsense_is_late() -> None:
    one_usable = answered([3.0], ["refused"])
    assert find_obstacle(one_usable, min_valid_replies=2) == ("1 valid replies, 2 needed", False)
    late = answered([], ["refused"], late=True)
    assert find_obstacle(late, min_valid_replies=1) == ("0 valid replies, 1 needed", False)


def test_noise_for_equal_weights_needs_as_many_members_of_equal_examples() -> None:
    assert find_obstacle(answered([3.0, 3.0]), min_valid_replies=1, noise_for=2) is None
    unequal = find_obstacle(answered([3.0, 5.0]), min_valid_replies=1, noise_for=2)
    assert unequal is not None
    assert not unequal.suspect
    assert "from 3 to 5 examples" in unequal.reason
    too_few = find_obstacle(answered([3.0, 3.0]), min_valid_replies=1, noise_for=3)
    assert too_few is not None
    assert "2 replies are usable" in too_few.reason
