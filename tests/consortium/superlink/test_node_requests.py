from __future__ import annotations

import datetime
from base64 import b64encode
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.superlink.node_requests import (
    KEY_HEADER,
    PATHS,
    PUBLIC_PATH,
    UnknownSignerError,
    is_plain,
    signer,
)

KEY = ec.generate_private_key(ec.SECP384R1())
PUBLIC = public_key_to_bytes(KEY.public_key())
NODE = 2**63 + 5
STATE = SimpleNamespace(get_node_id_by_public_key={PUBLIC: NODE}.get)


def headers(key: ec.EllipticCurvePrivateKey = KEY, age: float = 0.0) -> dict[bytes, bytes]:
    stamp = (now() - datetime.timedelta(seconds=age)).isoformat().encode()
    return {
        KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())),
        TIMESTAMP_HEADER.lower().encode(): stamp,
        FLEET_HTTP_SIGNATURE_HEADER.lower().encode(): b64encode(sign_message(key, stamp)),
    }


def test_a_registered_key_s_signature_names_its_node():
    assert signer(headers(), STATE) == NODE


def spoiled(name: bytes, value: bytes | None) -> dict[bytes, bytes]:
    found = headers()
    if value is None:
        del found[name]
    else:
        found[name] = value
    return found


SIGNATURE, STAMP = FLEET_HTTP_SIGNATURE_HEADER.lower().encode(), TIMESTAMP_HEADER.lower().encode()


@pytest.mark.parametrize(
    "found",
    [
        headers(ec.generate_private_key(ec.SECP384R1())),
        headers(age=3600.0),
        headers(age=-3600.0),
        *(spoiled(name, None) for name in (KEY_HEADER, SIGNATURE, STAMP)),
        *(spoiled(name, b"\xff not this") for name in (KEY_HEADER, SIGNATURE, STAMP)),
        spoiled(SIGNATURE, b64encode(b"signature")),
        spoiled(STAMP, now().isoformat().encode()),
        spoiled(STAMP, b"2026-01-01T00:00:00"),
    ],
)
def test_everything_else_is_a_stranger_s(found):
    with pytest.raises(UnknownSignerError):
        signer(found, STATE)


def test_the_requests_are_those_of_flower():
    flower = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith(PUBLIC_PATH)}
    assert {PUBLIC_PATH + name for name in PATHS} == flower


@given(st.binary(max_size=3000), st.integers(0, 2**64 - 1), st.text(max_size=64))
def test_an_object_s_upload_is_plain(content, number, text):
    request = PushObjectRequest(
        node=Node(node_id=number),
        run_id=number,
        object_id=text,
        object_content=content,
        session_id=text,
    )
    assert is_plain("push-object", request.SerializeToString())


@pytest.mark.parametrize("name", ["push-object", "push-messages"])
@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x00" * 50_000,  # The node, over and over.
        b"\x12\x00" * 50_000,
        b"\x0a",  # Cut off.
        b"\x0a\xff\xff\xff\xff\x7f",  # Longer than there is.
        b"\x0b\x0c",  # A group, which nobody uses any more.
        b"\x80" * 100,
    ],
)
def test_what_would_cost_more_than_its_bytes_is_not_plain(name, body):
    assert not is_plain(name, body)


@given(st.binary(max_size=200))
def test_any_bytes_are_judged(body):
    assert is_plain("push-object", body) in (True, False)
