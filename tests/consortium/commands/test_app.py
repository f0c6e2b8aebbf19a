from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedif_consortium.evidence.keys import read_key_file
from fedif_consortium.federation.records import make_node_key, public_line
from fedif_consortium.member.apps import bundle_digest
from fedif_flower.errors import ConfigError
from fedif_flower.storage import write_private
from tests.consortium.commands.typed import call
from tests.consortium.member.bundles import PYPROJECT, bundle

APP, CHANGED = bundle(), bundle("x = 2\n", **{"\x1b[31mred.py": "y = 1\n"})
DIGEST = bundle_digest(APP)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Be in a folder with two bundles and three keys, two of them signers'."""
    monkeypatch.chdir(tmp_path)
    Path("app.fab").write_bytes(APP)
    Path("changed.fab").write_bytes(CHANGED)
    Path("signers").mkdir()
    for name in ("ada", "bob", "eve"):
        path = Path(f"{name}.key")
        write_private(path, make_node_key())
        public = public_line(read_key_file(path, name), name)
        Path("." if name == "eve" else "signers", f"{name}.pub").write_text(public)


def test_an_app_is_shown_and_approved():
    shown = call("app", "show", "app.fab")
    assert f"SHA-256  {DIGEST}, {len(APP)} bytes" in shown
    assert "app      fedif/app 1.0" in shown
    assert "here     not approved" in shown
    # No node reads an empty policy of this folder, unless somebody says so.
    with pytest.raises(ConfigError, match=r"has no member-policy\.toml: name the policy of this"):
        call("app", "approve", "app.fab")
    assert not Path("approved-apps").exists()
    assert "fedif/app 1.0 runs here now" in call("app", "approve", "app.fab", "--policy", ".")
    assert "here     approved" in call("app", "show", DIGEST[:12])
    changed = call("app", "show", "changed.fab")
    assert "here     not approved" in changed
    assert "\x1b" not in changed
    lines = set(changed.splitlines()) ^ set(call("app", "show", DIGEST[:12]).splitlines())
    assert {line.split()[-1] for line in lines} >= {"app.py", "?[31mred.py"}


def test_what_an_app_calls_itself_is_printed_without_what_a_terminal_obeys():
    pyproject = PYPROJECT.replace('"1.0"', '"1.0\\u001b[8m"').replace('"fedif"', '"fe\\ndif"')
    Path("odd.fab").write_bytes(bundle(**{"pyproject.toml": pyproject}))
    for printed in (
        call("app", "show", "odd.fab"),
        call("app", "approve", "odd.fab", "--policy", "."),
    ):
        assert "fe?dif/app 1.0?[8m" in printed


def test_enough_signatures_of_those_on_a_member_s_list_let_an_app_run():
    Path("member-policy.toml").write_text("[apps]\nsigners = 'signers'\nleast-signers = 2")
    for name, signers in (("ada", "ada"), ("eve", "ada"), ("bob", "ada, bob")):
        written = call("app", "sign", "app.fab", "--key", f"{name}.key", "--to", "app-signatures")
        assert written.startswith(f"app-signatures/{DIGEST}.")
        shown = call("app", "show", "app.fab")
        assert f"signers  {signers}\n" in shown
        runs = f"signed by {signers}" if "bob" in signers else "not approved"
        assert f"here     {runs}" in shown
    assert "signers  nobody on your list" in call("app", "show", "changed.fab")


def test_a_key_that_others_may_read_signs_nothing():
    Path("ada.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"'ada\.key': others may read it"):
        call("app", "sign", "app.fab", "--key", "ada.key")
    assert not list(Path().glob("*.sig"))


@pytest.mark.parametrize(
    ("policy", "arguments", "reason"),
    [
        ("", "show none.fab", "'none.fab' is no file, no folder, and the beginning of 0 dig"),
        ("", "approve member-policy.toml", "member-policy.toml is no bundle of a Flower app"),
        ("", "sign app.fab --key none.key", "key = 'none.key' cannot be read: No such"),
        ("signers = 'none'", "show app.fab", "none cannot be read: No such file"),
        ("signers = '.'\nleast-signers = 2", "show app.fab", "has 1 keys, NAME.pub; allowed"),
    ],
)
def test_an_error_says_what_is_wrong(policy, arguments, reason):
    Path("member-policy.toml").write_text(f"[apps]\n{policy}")
    with pytest.raises(ConfigError, match=re.escape(reason)):
        call("app", *arguments.split())
