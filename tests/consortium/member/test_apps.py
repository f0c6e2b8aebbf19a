from __future__ import annotations

import json
import os
import struct

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.dsse import Envelope
from fedif_consortium.federation.records import public_line
from fedif_consortium.member import apps
from fedif_consortium.member.apps import (
    AppRules,
    MemberApps,
    bundle_digest,
    read_bundle,
    sign_bundle,
)
from fedif_flower.errors import ConfigError
from tests.consortium.member.bundles import bundle, zipped

KEYS = {"ada": Ed25519PrivateKey.generate(), "bob": ec.generate_private_key(ec.SECP384R1())}
DIGEST, OTHER = (bundle_digest(bundle(code)) for code in ("", "y = 1\n"))


def larger_than_it_says() -> bytes:
    """Return a bundle whose directory states one byte for a file of a thousand."""
    content = bytearray(bundle("x = 1\n" * 1000))
    at = content.rindex(b"app.py") - 46 + 24  # The size, in the directory's entry.
    assert struct.unpack_from("<L", content, at) == (6000,)
    struct.pack_into("<L", content, at, 1)
    return bytes(content)


NO_BUNDLE = "it is no bundle of a Flower app"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no zip", NO_BUNDLE),
        (bundle()[:-30], NO_BUNDLE),
        (zipped({"app.py": ""}), NO_BUNDLE),
        (zipped({"pyproject.toml": b"\xff"}), NO_BUNDLE),
        (zipped({"pyproject.toml": "project = 3\ntool.flwr.app.publisher = 'a'"}), NO_BUNDLE),
        (larger_than_it_says(), NO_BUNDLE),
        *(
            (bundle(**{path: "import os"}), "whose path is not normal")
            for path in ("./app.py", "a//b.py", "a/../app.py", "/app.py", "../b.py")
        ),
    ],
)
def test_what_is_no_bundle_or_would_lie_elsewhere_than_it_says_is_an_error(content, reason):
    with pytest.raises(ConfigError, match=reason):
        read_bundle(content, "it")


def test_a_bomb_is_not_unpacked(monkeypatch):
    for limit, most, content, reason in (
        ("MOST_UNPACKED", 2**20, bundle("0" * 2**20), "unpacks to more than"),
        ("MOST_FILES", 1, bundle(), "or 1 files"),
        ("MOST_BYTES", 100, bundle(), "allowed: at most 100"),
    ):
        monkeypatch.setattr(apps, limit, most)
        with pytest.raises(ConfigError, match=reason):
            read_bundle(content, "it")


@pytest.fixture
def member(tmp_path) -> MemberApps:
    """A member's apps, on whose list two signers are."""
    for folder in ("signers", "app-signatures"):
        (tmp_path / folder).mkdir()
    for name, key in KEYS.items():
        (tmp_path / "signers" / f"{name}.pub").write_text(public_line(key, name))
    rules = AppRules(signers="signers", least_signers=2)
    return MemberApps(rules, tmp_path, tmp_path / "state")


def test_a_signature_counts_for_its_key_and_its_bundle(member):
    for number, key in enumerate(KEYS.values()):
        assert member.approval(DIGEST) == ""
        name, content = sign_bundle(DIGEST, key)
        (member.signatures / name).write_bytes(content)
        (member.signatures / name.replace(DIGEST, OTHER)).write_bytes(content)
        assert member.signers_of(DIGEST) == ["ada", "bob"][: number + 1]
    assert member.approval(DIGEST) == "signed by ada, bob"
    assert member.signers_of(OTHER) == []
    foreign = Envelope(payload_type="another", payload=OTHER.encode()).signed_by(key)
    for changed in ("payloadType", "payload", "signatures"):
        entry = {**json.loads(content), changed: json.loads(foreign.to_bytes())[changed]}
        (member.signatures / name).write_text(json.dumps(entry))
        assert member.signers_of(DIGEST) == ["ada"]
    (member.signatures / name).write_text("no JSON")
    (member.signatures / f"{DIGEST}.folder.sig").mkdir()
    assert member.signers_of(DIGEST) == ["ada"]


def test_the_bundles_that_run_are_those_called_by_their_digest_and_those_signed(member):
    member.approved.mkdir()
    for name in (f"{OTHER}.fab", "my-app.fab"):
        (member.approved / name).write_bytes(b"")
    assert member.digests() == [OTHER]
    for number, key in enumerate(KEYS.values(), start=1):
        name, content = sign_bundle(DIGEST, key)
        (member.signatures / name).write_bytes(content)
        # Of one of two signers, it does not run.
        assert member.digests() == sorted([OTHER, DIGEST] if number == 2 else [OTHER])


@pytest.mark.usefixtures("member")
def test_a_key_that_a_signer_had_before_signs_no_app(tmp_path):
    """Whoever has it by now is not a second signer, nor the first one."""
    signers = tmp_path / "signers"
    (signers / "ada.pub").rename(signers / "ada~1.pub")
    (signers / "ada.pub").write_text(public_line(Ed25519PrivateKey.generate(), "ada"))
    again = MemberApps(AppRules(signers="signers", least_signers=2), tmp_path, tmp_path / "state")
    for key in KEYS.values():
        name, content = sign_bundle(DIGEST, key)
        (again.signatures / name).write_bytes(content)
    assert again.signers_of(DIGEST) == ["bob"]


def test_so_many_refused_bundles_are_kept(member, tmp_path):
    contents = [bundle(f"x = {i}\n") for i in range(5)]
    digests = [bundle_digest(content) for content in contents]
    for age, (digest, content) in enumerate(zip(digests, contents, strict=True)):
        member.keep_refused(digest, lambda content=content: content)
        os.utime(member.refused / f"{digest}.fab", (age, age))
    assert {path.stem for path in member.refused.iterdir()} == set(digests[1:])
    assert member.find(digests[4][:12]).content == contents[4]
    member.keep_refused("../../approved-apps/x", lambda: contents[0])
    member.keep_refused(digests[0], lambda: contents[1])
    assert len(list(tmp_path.rglob("*.fab"))) == 4
