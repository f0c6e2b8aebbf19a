from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedif_consortium.member.app_bundle import bundle_digest, read_bundle, sign_bundle
from fedif_consortium.member.app_rules import AppRules, MemberApps
from fedif_flower.errors import ConfigError
from tests.consortium.member.bundles import bundle

APP = read_bundle(bundle(), "app")


def apps(folder, **rules):
    return MemberApps(AppRules(**rules), folder, folder / "state")


def write_signer(folder, name):
    key = Ed25519PrivateKey.generate()
    folder.mkdir(exist_ok=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public)
    return key


def write_signature(folder, digest, key):
    folder.mkdir(exist_ok=True)
    name, content = sign_bundle(digest, key)
    (folder / name).write_bytes(content)


def test_enough_signatures_let_an_app_run(tmp_path):
    keys = [write_signer(tmp_path / "keys", name) for name in ("ada", "bob")]
    found = apps(tmp_path, signers="keys", least_signers=2)
    write_signature(tmp_path / "app-signatures", APP.digest, keys[0])
    assert found.approval(APP.digest) == ""
    assert found.signers_of(APP.digest) == ["ada"]
    write_signature(tmp_path / "app-signatures", APP.digest, Ed25519PrivateKey.generate())
    assert found.approval(APP.digest) == ""
    write_signature(tmp_path / "app-signatures", APP.digest, keys[1])
    assert found.approval(APP.digest) == "signed by ada, bob"


def test_too_few_signers_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"keys cannot be read: No such file"):
        apps(tmp_path, signers="keys")
    write_signer(tmp_path / "keys", "ada")
    with pytest.raises(ConfigError, match=r"has 1 keys, NAME\.pub; allowed: at least"):
        apps(tmp_path, signers="keys", least_signers=2)


def test_so_many_refused_bundles_are_kept(tmp_path):
    found = apps(tmp_path)
    contents = [bundle(f"x = {i}\n") for i in range(5)]
    digests = [bundle_digest(content) for content in contents]
    refused = tmp_path / "state" / "refused-apps"
    for age, (digest, content) in enumerate(zip(digests, contents, strict=True)):
        found.keep_refused(digest, lambda content=content: content)
        os.utime(refused / f"{digest}.fab", (age, age))
    assert {path.stem for path in refused.iterdir()} == set(digests[1:])
    assert found.find(digests[4][:12]).content == contents[4]
    found.keep_refused("../../approved-apps/x", lambda: contents[0])
    found.keep_refused(digests[0], lambda: contents[1])
    assert len(list(tmp_path.rglob("*.fab"))) == 4
