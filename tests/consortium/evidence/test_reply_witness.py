from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_consortium.evidence.signed import SIGNATURE_RECORD, sign_reply
from fedif_flower.errors import ReplyError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.folder import RunFolder

RUN = "ab" * 16
KEY, OTHER = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
NODE = ClientNode(0, 1000, name="ada")


def arrays(value: float) -> ArrayRecord:
    return ArrayRecord({"w": pack_array(np.full(3, value, np.float32))})


def reply(value: float = 2.0, key=KEY, *, received: float = 1.0, server_round: int = 1, **about):
    content = RecordDict({"arrays": arrays(value), "metrics": MetricRecord({"num-examples": 10})})
    about = {"run": RUN, "node_id": 1000, **about}
    sign_reply(content, arrays(received), key, asked_in=server_round, **about)
    return content


def witness(server_round: int = 1, **how) -> ReplyWitness:
    made = ReplyWitness(RunFolder("nowhere"), RUN, **how)
    made.begin(server_round, arrays(1.0))
    return made


def look(of: ReplyWitness, content: RecordDict, asked: int = 1) -> None:
    of.look(content, content.array_records["arrays"], NODE, asked)


def forged(name: str, value: object) -> RecordDict:
    content = reply()
    record = dict(content.config_records[SIGNATURE_RECORD])
    content[SIGNATURE_RECORD] = ConfigRecord({**record, name: value})
    return content


def swapped() -> RecordDict:
    content = reply()
    content["arrays"] = arrays(9.0)
    return content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (swapped(), "another update than it sent"),
        (reply(received=7.0), "another model than it was sent"),
        (reply(node_id=1001), "does not fit"),
        (reply(head=b"h" * 32), "was told other records than these"),
        (forged("head", b"told"), "does not fit"),
        (forged("key", 5), "its signature: key = 5"),
        (forged("key", b"no key"), "signed with no public key"),
    ],
)
def test_a_false_signature_is_refused_by_what_is_false(content, reason):
    found = witness(heads=[b"told"])
    with pytest.raises(ReplyError, match=reason):
        look(found, content)
    assert found.seen[1000].signed is None


def test_a_member_has_one_key_in_a_run():
    found = witness()
    look(found, reply())
    found.begin(2, arrays(1.0))
    with pytest.raises(ReplyError, match="another key than before"):
        look(found, reply(key=OTHER, server_round=2), asked=2)


def test_a_reply_without_a_signature_is_refused_where_that_is_required():
    content = RecordDict({"arrays": arrays(2.0), "metrics": MetricRecord({"num-examples": 10})})
    plain, taking = witness(), witness(digests=True)
    look(plain, content)
    look(taking, content)
    assert (plain.seen, taking.seen[1000].signed) == ({}, None)
    with pytest.raises(ReplyError, match=r"evidence\.require-signatures"):
        look(witness(required=True), content)


def test_a_late_reply_signs_the_round_that_it_was_asked_in():
    found = witness(late_rounds=1)
    found.begin(2, arrays(5.0))
    look(found, reply(), asked=1)
    assert found.seen[1000].signed is not None
