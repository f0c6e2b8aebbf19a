from __future__ import annotations

import asyncio
import datetime
from base64 import b64encode
from collections.abc import Collection
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fedif_consortium.evidence.keys import key_id
from fedif_consortium.superlink.signed_requests import (
    KEY,
    SIGNATURE,
    SMALL,
    STAMP,
    SignedRequests,
    is_signed,
    removed_keys,
)
from fedif_flower.errors import ConfigError

PRIVATE = ec.generate_private_key(ec.SECP384R1())
PUBLIC = public_key_to_bytes(PRIVATE.public_key())
STATE = SimpleNamespace(get_node_id_by_public_key={PUBLIC: 2**63 + 5}.get)


def headers(key: ec.EllipticCurvePrivateKey = PRIVATE, age: float = 0.0) -> dict[bytes, bytes]:
    stamp = (now() - datetime.timedelta(seconds=age)).isoformat().encode()
    return {
        KEY: b64encode(public_key_to_bytes(key.public_key())),
        STAMP: stamp,
        SIGNATURE: b64encode(sign_message(key, stamp)),
    }


def spoiled(name: bytes, value: bytes | None) -> dict[bytes, bytes]:
    found = headers()
    if value is None:
        del found[name]
    else:
        found[name] = value
    return found


def test_a_registered_node_s_signature_is_known():
    assert is_signed(headers(), STATE)


@pytest.mark.parametrize(
    "found",
    [
        headers(ec.generate_private_key(ec.SECP384R1())),
        headers(age=3600.0),
        headers(age=-3600.0),
        *(spoiled(name, None) for name in (KEY, SIGNATURE, STAMP)),
        *(spoiled(name, b"\xff not this") for name in (KEY, SIGNATURE, STAMP)),
        spoiled(SIGNATURE, b64encode(b"signature")),
        spoiled(STAMP, now().isoformat().encode()),
        spoiled(STAMP, b"2026-01-01T00:00:00"),
    ],
)
def test_everything_else_is_a_stranger_s(found):
    assert not is_signed(found, STATE)


@pytest.mark.parametrize(
    ("path", "length", "signed", "status"),
    [
        ("/v1/fleet/push-object", b"9000000", True, 200),
        ("/v1/fleet/push-object", b"9000000", False, 401),
        ("/v1/fleet/push-messages", None, False, 401),  # It may be of any length.
        ("/v1/fleet/push-messages", b"-1", False, 401),
        ("/v1/fleet/pull-messages", str(SMALL).encode(), False, 200),  # Flower itself looks.
        ("/v1/control/start-run", b"9000000", False, 200),  # From this host.
    ],
)
def test_a_large_request_is_read_once_it_is_known_to_be_a_node_s(path, length, signed, status):
    given = headers() if signed else {}
    given |= {} if length is None else {b"content-length": length}
    assert answer(path, given) == status


@pytest.mark.parametrize("length", [b"10", b"9000000"])
def test_a_key_that_was_removed_opens_nothing_though_a_backup_has_its_registration(length):
    other = ec.generate_private_key(ec.SECP384R1()).public_key()
    given = headers() | {b"content-length": length}
    assert answer("/v1/fleet/pull-messages", given, {key_id(other)}) == 200
    assert answer("/v1/fleet/pull-messages", given, {key_id(PRIVATE.public_key())}) == 401


def test_a_key_of_a_kind_that_nobody_has_is_a_stranger_s():
    """Once a member was removed, anybody could have a traceback written by a few bytes."""
    # SubjectPublicKeyInfo: a point on brainpoolP160r1, which cryptography does not support.
    curve = bytes.fromhex("301406072a8648ce3d020106092b2403030208010101")
    der = b"\x30\x42" + curve + b"\x03\x2a\x00\x04" + bytes(range(40))
    pem = b"-----BEGIN PUBLIC KEY-----\n" + b64encode(der) + b"\n-----END PUBLIC KEY-----\n"
    given = headers() | {KEY: b64encode(pem)}
    state = SimpleNamespace(get_node_id_by_public_key=lambda key: 5)
    assert not is_signed(given, state)
    removed = {key_id(PRIVATE.public_key())}
    given |= {b"content-length": b"10"}
    assert answer("/v1/fleet/pull-messages", given, removed) == 200  # Flower itself refuses it.


@pytest.mark.parametrize("second", [b"", None])
def test_a_removed_key_does_not_hide_before_a_second_header(second):
    """Flower reads the first of two headers of a name."""
    other = ec.generate_private_key(ec.SECP384R1())
    removed = {key_id(PRIVATE.public_key())}
    lines = [*headers().items(), (b"content-length", b"10")]
    lines.append((KEY, headers(other)[KEY] if second is None else second))
    assert answer("/v1/fleet/pull-messages", lines, removed) == 401


@pytest.mark.parametrize("name", [KEY, SIGNATURE, STAMP, b"content-length"])
def test_a_header_that_says_who_asks_or_how_much_is_there_once(name):
    given = headers() | {b"content-length": b"10"}
    lines = [*given.items(), (name, given[name])]
    assert answer("/v1/fleet/pull-messages", lines) == 401


@pytest.mark.parametrize(("signed", "status"), [(False, 401), (True, 200)])
def test_a_body_in_chunks_is_as_long_as_it_likes(signed, status):
    """Beside `Transfer-Encoding: chunked` a server passes over the length."""
    given = headers() if signed else {}
    given |= {b"content-length": b"5", b"transfer-encoding": b"chunked"}
    assert answer("/v1/fleet/push-messages", given) == status


def answer(
    path: str,
    given: dict[bytes, bytes] | list[tuple[bytes, bytes]],
    removed: Collection[str] = (),
) -> int:
    """Return the status of a request with these headers, whose body nobody may read."""
    sent = []
    lines = list(given.items()) if isinstance(given, dict) else given

    async def superlink(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def send(message):
        sent.append(message)

    async def receive():
        raise AssertionError("the body was read")

    scope = {"type": "http", "path": path, "headers": lines}
    asyncio.run(SignedRequests(superlink, lambda: STATE, removed)(scope, receive, send))
    return sent[0]["status"]


def test_a_line_of_the_removed_that_is_not_whole_lets_nobody_in_again(tmp_path):
    """The SuperLink does not begin with a list from which a line would be left out in silence."""
    path = tmp_path / "removed.csv"
    path.write_text("name,key,removed,why\nada,aa,2026-01-31\nbob,bb,2026-01-31,left\n")
    with pytest.raises(ConfigError, match=r"removed\.csv, line 2: fewer cells than columns"):
        removed_keys(path)
