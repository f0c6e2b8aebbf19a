"""What was signed and noted is what left, though the policy changed what the app sent."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from fedif_consortium.evidence.member_receipts import note_sent
from fedif_consortium.evidence.reply_signing import record_digest, signed_reply
from fedif_consortium.evidence.signed_update import SignedUpdate, UpdateStatement
from fedif_consortium.member.outgoing import LeavesSettings, OutgoingPolicy
from fedif_consortium.member.own_replies import OwnReplies
from fedif_flower.errors import RefusedByMemberError
from fedif_flower.messages.arrays import pack_array, view_array
from fedif_flower.messages.instructions import RECEIPTS_KEY, ROUND_KEY, RUN_ID_KEY

NODE, RUN, ROUND = 7, "0f" * 16, 3
KEY = ec.generate_private_key(ec.SECP384R1())


def model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": pack_array(np.array(values, np.float32))})


SETTINGS = ConfigRecord({ROUND_KEY: ROUND, RUN_ID_KEY: RUN, RECEIPTS_KEY: True})
RECEIVED = RecordDict({"arrays": model(0.0, 0.0), "config": SETTINGS})


@pytest.fixture
def node_config(tmp_path):
    path = tmp_path / "node.key"
    pem = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem)
    return {
        "partition-id": 0,
        "num-partitions": 2,
        "signing-key": str(path),
        "receipts-dir": str(tmp_path / "receipts"),
    }


def offered(node_config) -> RecordDict:
    """What the app would send: an update of length 5, signed and noted."""
    metrics = MetricRecord({"num-examples": 123_456_789})
    content = RecordDict({"metrics": metrics, "arrays": model(3.0, 4.0)})
    signed = signed_reply(content, RECEIVED["arrays"], SETTINGS, KEY, NODE)
    note_sent(content, SETTINGS, Context(1, NODE, node_config, RecordDict(), {}), signed)
    return content


def kept(tmp_path) -> list[str]:
    files = (tmp_path / "receipts" / RUN).glob("sent-*.json")
    return [json.loads(path.read_text())["sent"] for path in files]


def check_signature(content: RecordDict) -> None:
    """Check what a server checks."""
    record = content["signature"]
    received, sent = record_digest(RECEIVED["arrays"]), record_digest(content["arrays"])
    assert (record["received"], record["sent"]) == (received, sent)
    examples = content["metrics"]["num-examples"]
    statement = UpdateStatement(RUN, ROUND, NODE, examples, received, sent)
    SignedUpdate(statement, record["key"], record["signature"]).check()


@pytest.mark.parametrize("limits", [{"clip_length": 2.5}, {"metric_digits": 2}, {}])
def test_what_left_is_signed_and_noted_in_place_of_what_the_app_offered(
    tmp_path, node_config, limits
):
    content = offered(node_config)
    leaving = OutgoingPolicy(LeavesSettings(**limits)).check(RECEIVED, content)
    OwnReplies(NODE, node_config).amend(RECEIVED, content, leaving)
    check_signature(leaving)
    assert kept(tmp_path) == [record_digest(leaving["arrays"]).hex()]
    if "clip_length" in limits:
        assert view_array(leaving["arrays"]["w"]).tolist() == [1.5, 2.0]


def test_what_was_refused_is_not_noted(tmp_path, node_config):
    content = offered(node_config)
    assert len(kept(tmp_path)) == 1
    with pytest.raises(RefusedByMemberError):
        OutgoingPolicy(LeavesSettings(longest_update=4.0)).check(RECEIVED, content)
    OwnReplies(NODE, node_config).disown(RECEIVED, content)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    "received",
    [
        RecordDict(),
        RecordDict({"arrays": model(0.0, 0.0)}),
        RecordDict({"config": SETTINGS}),
        RecordDict({"config": ConfigRecord({ROUND_KEY: "x"}), "arrays": MetricRecord()}),
        RecordDict(
            {"config": ConfigRecord({ROUND_KEY: 1, RECEIPTS_KEY: True, RUN_ID_KEY: "../x"})}
        ),
    ],
)
def test_other_messages_and_other_apps_are_left_alone(tmp_path, node_config, received):
    content = RecordDict({"arrays": model(3.0, 4.0)})
    for config in (node_config, {"another": "app's"}):
        own = OwnReplies(NODE, config)
        own.amend(received, content, content)
        own.disown(received, content)
    assert content == RecordDict({"arrays": model(3.0, 4.0)})
    assert list(tmp_path.glob("receipts/**/*.json")) == []
