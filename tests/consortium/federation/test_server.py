"""What an operator makes, and how it sees its federation."""

from __future__ import annotations

import tomllib

import pytest

from fedif_consortium.federation.members import add, invite, remove
from fedif_consortium.federation.server import initialize, look
from fedif_flower.errors import ConfigError
from tests.consortium.federation.folders import SETTINGS, Registry, answer_of, content, serving

SECRETS = ("ca.key", "server.key", "statement-key.pem")


def test_a_folder_has_all_that_a_server_needs(folder, flower_home):
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == set(SECRETS)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.settings() == SETTINGS
    known = tomllib.loads((flower_home / "config.toml").read_text())["superlink"]["consortium"]
    assert known == {"address": "127.0.0.1:9095", "root-certificates": str(folder.authority)}


def test_what_an_interrupted_attempt_left_out_is_made_and_no_key_with_it(folder):
    before = content(folder.path)
    for path in (folder.authority, folder.certificate, folder.configuration):
        path.unlink()
    for _ in range(2):
        initialize(folder, SETTINGS)
    after = content(folder.path)
    assert after.keys() == before.keys()
    assert [after[name] for name in SECRETS] == [before[name] for name in SECRETS]


@pytest.mark.parametrize("name", ["ca", "server"])
def test_a_key_that_was_lost_is_not_made_anew_beside_its_certificate(folder, name):
    (folder.path / f"{name}.key").unlink()
    before = content(folder.path)
    with pytest.raises(ConfigError, match=rf"{name}\.crt is there, but {name}\.key is not"):
        initialize(folder, SETTINGS)
    assert content(folder.path) == before


def test_members_are_as_the_superlink_knows_them(folder, tmp_path, monkeypatch):
    registry = Registry()
    for name in ("ada", "bob", "cyd", "dan"):
        add(folder, answer_of(folder, name, tmp_path / name), registry)
    invite(folder, "eve")
    remove(folder, "dan", registry)
    nodes = registry.nodes()
    nodes["1001"] |= {"status": "offline", "offline-at": "2026-10-01 12:00:00Z"}
    nodes["1002"] |= {"status": "registered"}
    monkeypatch.setattr(registry, "nodes", lambda: nodes)
    with serving(folder) as settings:
        folder.configuration.write_text(settings)
        seen = look(folder, registry)
    members = [[m[k] for k in ("name", "state", "online", "last_seen")] for m in seen["members"]]
    assert members == [
        ["ada", "registered", True, "now"],
        ["bob", "registered", False, "2026-10-01 12:00:00Z"],
        ["cyd", "registered", False, "never"],
        ["dan", "removed", False, "never"],
        ["eve", "invited", None, None],
    ]
    assert (seen["superlink"], seen["warnings"]) == ("", ["1 of 3 members are online"])
    assert seen["runs"][0]["run-id"] == "7"
