"""What leaves is signed and noted by the guard, whatever the app offered."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedif_consortium.evidence import member_receipts
from fedif_consortium.evidence.member_receipts import SIGNATURES_KEY, TakenReceipts
from fedif_consortium.evidence.receipts import RoundChain, ToldRound
from fedif_consortium.evidence.signed import SignedUpdate, record_digest
from fedif_consortium.member.outgoing import LeavesSettings, OutgoingPolicy
from fedif_consortium.member.own_replies import OwnReplies, app_config
from fedif_flower.errors import StorageError
from fedif_flower.messages.arrays import pack_array, view_array
from fedif_flower.messages.instructions import RECEIPTS_KEY, ROUND_KEY, RUN_ID_KEY
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import read_findings, to_record

NODE, RUN, ROUND = 7, "0f" * 16, 3
KEY = ec.generate_private_key(ec.SECP384R1())


def model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": pack_array(np.array(values, np.float32))})


SETTINGS = ConfigRecord({ROUND_KEY: ROUND, RUN_ID_KEY: RUN, RECEIPTS_KEY: True})
RECEIVED = RecordDict({"arrays": model(0.0, 0.0), "config": SETTINGS})


@pytest.fixture
def own(tmp_path) -> OwnReplies:
    config = {"partition-id": 0, "num-partitions": 2, "receipts-dir": str(tmp_path / "receipts")}
    return OwnReplies(NODE, config, KEY)


def offered() -> RecordDict:
    """What the app would send: an update of length 5."""
    metrics = MetricRecord({"num-examples": 123_456_789})
    return RecordDict({"metrics": metrics, "arrays": model(3.0, 4.0)})


@pytest.mark.parametrize("limits", [{"clip_length": 2.5}, {"metric_digits": 2}, {}])
def test_what_leaves_is_signed_and_noted_once_it_has_left(tmp_path, own, limits):
    leaving = OutgoingPolicy(LeavesSettings(**limits), None).limit_reply(RECEIVED, offered(), 0)
    note_sent = own.sign(RECEIVED, leaving, is_round=True)
    # What a server checks:
    record, sent = leaving["signature"], record_digest(leaving["arrays"]).hex()
    assert record["received"] == record_digest(RECEIVED["arrays"]).hex()
    assert record["sent"] == sent
    examples = leaving["metrics"]["num-examples"]
    said = {"asked_in": ROUND, "node_id": NODE, "examples": examples}
    SignedUpdate.read(RUN, {**record, **said}).check()
    assert "head" not in record  # It was told of no round yet.
    folder = tmp_path / "receipts" / RUN
    assert not folder.exists()
    note_sent()
    (path,) = folder.glob("sent-*.json")
    assert json.loads(path.read_text())["sent"] == sent
    if "clip_length" in limits:
        assert view_array(leaving["arrays"]["w"]).tolist() == [1.5, 2.0]


def test_a_server_cannot_take_back_what_it_told(own):
    chain, leaving = RoundChain(), offered()
    leaves = [f"1,{NODE},,0.0,,,away"]
    about = {"run": RUN, "number": 1, "rows": bytes(32)}
    about |= {"origin": bytes(32), "state": bytes(32)}
    chain.add(ToldRound.by(Ed25519PrivateKey.generate(), **chain.next(leaves, **about)))
    told = RecordDict({**chain.receipts_for(NODE, b""), "config": SETTINGS})
    own.take(told, is_round=True)
    silent = ConfigRecord({**SETTINGS, RECEIPTS_KEY: False})
    received = RecordDict({**RECEIVED, "config": silent})
    assert own.sign(received, leaving, is_round=True) is not None
    assert leaving["signature"]["head"] == chain.root.hex()


def test_a_member_without_a_guard_cannot_take_part_where_signatures_are_required(own):
    found = [
        TakenReceipts().checks(NodeConfig(partition_id=0), ConfigRecord({SIGNATURES_KEY: s}))
        for s in (False, True)
    ]
    assert [one.status for (one,) in found] == ["ok", "failed"]
    assert "has no guard that signs: fedif node start --policy" in found[1][0].words
    answer = RecordDict({"preflight": to_record(found[1], 0.0)})
    OwnReplies(NODE, {}, None).sign(RecordDict(), answer, is_round=False)
    assert read_findings(answer)[0] == found[1]
    own.sign(RecordDict(), answer, is_round=False)
    assert [one.status for one in read_findings(answer)[0]] == ["ok"]


def test_the_app_is_told_of_the_key_only_where_it_signs_a_box_of_a_mask():
    mine = {"a": 1, "signing-key": "/own", "receipts-dir": "/r"}
    assert app_config(mine, "/login") == {"a": 1}
    masked = {"keeper-key": "09" * 32}
    assert app_config(mine | masked, "/login") == {"a": 1, "signing-key": "/own"} | masked
    assert app_config(masked, "/login") == {"signing-key": "/login"} | masked


@pytest.mark.parametrize(
    "received",
    [
        RecordDict(),
        RecordDict({"arrays": model(0.0, 0.0)}),
        RecordDict({"config": SETTINGS}),
        RecordDict({"config": ConfigRecord({ROUND_KEY: "x"}), "arrays": MetricRecord()}),
        RecordDict({"arrays": model(0.0), "config": ConfigRecord({ROUND_KEY: 1})}),
    ],
)
def test_other_messages_and_other_apps_are_left_alone(tmp_path, own, received):
    content = RecordDict({"arrays": model(3.0, 4.0)})
    for one in (own, OwnReplies(NODE, {"another": "app's"}, KEY)):
        one.take(received, is_round=True)
        assert one.sign(received, content, is_round=True) is None
    assert content == RecordDict({"arrays": model(3.0, 4.0)})
    assert list(tmp_path.glob("receipts/**/*.json")) == []


def test_an_answer_to_a_question_is_signed_as_no_update(tmp_path, own):
    """Else the server would have two updates of one round, and choose between them."""
    leaving = offered()
    assert own.sign(RECEIVED, leaving, is_round=False) is None
    assert leaving == offered()


def test_no_update_leaves_once_the_receipts_beside_the_model_have_filled_the_folder(
    tmp_path, own, monkeypatch
):
    monkeypatch.setattr(member_receipts, "MOST_FILES", 1)
    chain = RoundChain()
    leaves = [f"1,{NODE},,0.0,,,away"]
    about = {"run": RUN, "number": 1, "rows": bytes(32)}
    about |= {"origin": bytes(32), "state": bytes(32)}
    chain.add(ToldRound.by(Ed25519PrivateKey.generate(), **chain.next(leaves, **about)))
    told = RecordDict({**chain.receipts_for(NODE, b""), "config": SETTINGS})
    with pytest.raises(StorageError, match="holds 1 files: move it away"):
        own.take(told, is_round=True)
    assert len(list(tmp_path.glob("receipts/*/round-*.json"))) == 1
