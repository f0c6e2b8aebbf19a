from __future__ import annotations

import re

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from typer.testing import CliRunner

from fedif_consortium.commands.app import app_cli
from fedif_consortium.member.app_bundle import bundle_digest
from fedif_flower.errors import ConfigError
from tests.consortium.member.bundles import bundle
from tests.consortium.member.test_app_rules import write_signer

APP, CHANGED = bundle(), bundle("x = 2\n", **{"\x1b[31mred.py": "y = 1\n"})
DIGEST = bundle_digest(APP)


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call ``fedif app`` in a folder that has a policy."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "member-policy.toml").write_text("")
    (tmp_path / "app.fab").write_bytes(APP)
    (tmp_path / "changed.fab").write_bytes(CHANGED)

    def call(*arguments):
        result = CliRunner().invoke(app_cli, [*map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_an_app_is_shown_and_approved(call):
    shown = call("show", "app.fab")
    assert f"SHA-256  {DIGEST}, {len(APP)} bytes" in shown
    assert "app      fedif/app 1.0" in shown
    assert "here     not approved" in shown
    assert "fedif/app 1.0 runs here now" in call("approve", "app.fab")
    assert "here     approved" in call("show", DIGEST[:12])
    changed = call("show", "changed.fab")
    assert "here     not approved" in changed
    assert "\x1b" not in changed
    lines = set(changed.splitlines()) ^ set(call("show", DIGEST[:12]).splitlines())
    assert {line.split()[-1] for line in lines} >= {"app.py", "?[31mred.py"}


def test_an_auditor_signs_without_a_policy_and_a_member_believes_it(call, tmp_path):
    (tmp_path / "member-policy.toml").unlink()
    for name in ("ada", "bob"):
        key = write_signer(tmp_path / "signers", name)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / f"{name}.key").write_bytes(pem)
    written = call("sign", "app.fab", "--key", "ada.key", "--to", "app-signatures")
    assert written.startswith(f"app-signatures/{DIGEST}.")
    (tmp_path / "member-policy.toml").write_text("[apps]\nsigners = 'signers'")
    shown = call("show", "app.fab")
    assert "here     signed by ada" in shown
    assert "signers  nobody on your list" in call("show", "changed.fab")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "none.fab"], "'none.fab' is no file, no folder, and the beginning of 0 digests"),
        (["approve", "member-policy.toml"], "member-policy.toml is no bundle of a Flower app"),
        (
            ["sign", "app.fab", "--key", "none.key"],
            "--key = 'none.key' cannot be read: No such",
        ),
    ],
)
def test_an_error_says_what_is_wrong(call, arguments, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        call(*arguments)
