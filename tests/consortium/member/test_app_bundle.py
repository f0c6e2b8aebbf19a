from __future__ import annotations

import json
import struct

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.dsse import Envelope
from fedif_consortium.member import app_bundle
from fedif_consortium.member.app_bundle import bundle_digest, read_bundle, sign_bundle, signers_of
from fedif_flower.errors import ConfigError
from tests.consortium.member.bundles import bundle, zipped

KEYS = {"ada": Ed25519PrivateKey.generate(), "bob": ec.generate_private_key(ec.SECP384R1())}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}


def read(content):
    return read_bundle(content, "it")


def larger_than_it_says():
    """Return a bundle whose directory states one byte for a file of a thousand."""
    content = bytearray(bundle("x = 1\n" * 1000))
    at = content.rindex(b"app.py") - 46 + 24  # The size, in the directory's entry.
    assert struct.unpack_from("<L", content, at) == (6000,)
    struct.pack_into("<L", content, at, 1)
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no zip",
        bundle()[:-30],
        zipped({"app.py": ""}),
        zipped({"pyproject.toml": b"\xff"}),
        zipped({"pyproject.toml": "project = 3\ntool.flwr.app.publisher = 'a'"}),
        larger_than_it_says(),
    ],
)
def test_what_is_no_bundle_is_an_error(content):
    with pytest.raises(ConfigError, match="it is no bundle of a Flower app"):
        read(content)


def test_a_file_that_would_lie_elsewhere_than_it_says_is_refused():
    for path in ("./app.py", "a//b.py", "a/../app.py", "/app.py", "../b.py"):
        with pytest.raises(ConfigError, match="whose path is not normal"):
            read(bundle(**{path: "import os"}))


def test_a_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(app_bundle, "MOST_UNPACKED", 2**20)
    with pytest.raises(ConfigError, match="unpacks to more than"):
        read(bundle("0" * 2**20))
    monkeypatch.setattr(app_bundle, "MOST_FILES", 1)
    with pytest.raises(ConfigError, match="or 1 files"):
        read(bundle())
    monkeypatch.setattr(app_bundle, "MOST_BYTES", 100)
    with pytest.raises(ConfigError, match="allowed: at most 100"):
        read(bundle())


def test_a_signature_counts_for_its_key_and_its_bundle(tmp_path):
    digest, other = (bundle_digest(bundle(code)) for code in ("", "y = 1\n"))
    for key in KEYS.values():
        name, content = sign_bundle(digest, key)
        (tmp_path / name).write_bytes(content)
        (tmp_path / name.replace(digest, other)).write_bytes(content)
    assert signers_of(digest, tmp_path, PUBLIC) == ["ada", "bob"]
    assert signers_of(digest, tmp_path, {"bob": PUBLIC["bob"]}) == ["bob"]
    assert signers_of(other, tmp_path, PUBLIC) == []


@pytest.mark.parametrize("changed", ["payloadType", "payload", "signatures"])
def test_what_is_no_signature_counts_for_nobody(tmp_path, changed):
    digest, other = (bundle_digest(bundle(code)) for code in ("", "y = 1\n"))
    name, content = sign_bundle(digest, KEYS["ada"])
    foreign = Envelope(payload_type="another", payload=other.encode()).signed_by(KEYS["ada"])
    entry = {**json.loads(content), changed: json.loads(foreign.to_bytes())[changed]}
    (tmp_path / name).write_text(json.dumps(entry))
    (tmp_path / f"{digest}.text.sig").write_text("no JSON")
    (tmp_path / f"{digest}.folder.sig").mkdir()
    assert signers_of(digest, tmp_path, PUBLIC) == []
