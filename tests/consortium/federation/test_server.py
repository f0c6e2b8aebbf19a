"""What an operator makes, and how it sees its federation."""

from __future__ import annotations

import re
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from fedif_consortium.federation import certificates, server
from fedif_consortium.federation.members import add, invite, remove
from fedif_consortium.federation.records import FederationFolder
from fedif_consortium.federation.server import initialize, make_pair, start_superlink, state_of
from fedif_flower.errors import ConfigError
from tests.consortium.federation.folders import (
    SETTINGS,
    Registry,
    answer_of,
    content,
    make_federation,
    serving,
)

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


def test_what_init_says_names_each_secret_and_a_command_that_a_shell_takes(tmp_path, capsys):
    folder = make_federation(tmp_path / "a b")
    assert f"nginx -e stderr -p '{folder.nginx.parent}' -c nginx.conf" in capsys.readouterr().out
    folder.statement_key.unlink()
    initialize(folder, SETTINGS)
    said = capsys.readouterr().out.splitlines()
    done = [next(line.split()[0] for line in said if name in line) for name in SECRETS]
    assert done == ["kept", "kept", "made"]


@pytest.mark.parametrize("name", ["ca.crt", "server.crt"])
def test_a_superlink_without_a_certificate_says_which(folder, name, monkeypatch):
    monkeypatch.setattr(server, "become", lambda *_, **__: None)
    (folder.path / name).unlink()
    with pytest.raises(ConfigError, match=re.escape(f"{folder.path / name} is no certificate")):
        start_superlink(folder, [])


def test_a_superlink_with_anothers_key_or_a_damaged_database_says_which_file(folder, monkeypatch):
    monkeypatch.setattr(server, "become", lambda *_, **__: None)
    with closing(sqlite3.connect(folder.database)) as database:
        database.execute("CREATE TABLE node (id)")
    start_superlink(folder, [])
    key = folder.server_key.read_bytes()
    reason = r"server\.key is not the private key of .*server\.crt"
    for content_of_key in (folder.authority_key.read_bytes(), b""):
        folder.server_key.write_bytes(content_of_key)
        with pytest.raises(ConfigError, match=reason):
            start_superlink(folder, [])
    folder.server_key.write_bytes(key)
    folder.database.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(ConfigError, match=r"superlink\.db is no database of a SuperLink"):
        start_superlink(folder, [])


def test_a_database_that_is_locked_or_cannot_be_opened_is_not_to_be_moved_away(folder, monkeypatch):
    monkeypatch.setattr(server, "become", lambda *_, **__: None)
    monkeypatch.setattr(server, "_LOCK_SECONDS", 0.01)
    with closing(sqlite3.connect(folder.database)) as database:
        database.execute("CREATE TABLE node (id)")
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigError, match=r"superlink\.db cannot be read .*locked") as locked:
            start_superlink(folder, [])
    folder.database.unlink()
    folder.database.mkdir()
    with pytest.raises(ConfigError, match=r"cannot be opened by this user") as unopened:
        start_superlink(folder, [])
    assert "move it away" not in f"{locked.value} {unopened.value}"


def test_a_pair_that_is_there_is_not_kept_for_another_host(tmp_path):
    """Whoever gives the command again with another host would read that all is done."""
    make_pair(tmp_path, "keeper", ["keeper.example.org", "10.0.0.1"], "the server")
    before = content(tmp_path)
    for hosts in (["keeper.example.org"], ["10.0.0.1", "localhost"], []):
        make_pair(tmp_path, "keeper", hosts, "the server")
    with pytest.raises(ConfigError, match=r"keeper\.crt is there, and is not for other\.example:"):
        make_pair(tmp_path, "keeper", ["keeper.example.org", "other.example"], "the server")
    assert content(tmp_path) == before


def test_a_server_s_certificate_is_not_kept_for_another_host(folder):
    """Members that connect by the new name would find no TLS."""
    settings = SETTINGS.replace(hosts=["localhost", "other.example"])
    text = folder.configuration.read_text()
    folder.configuration.write_text(text.replace('"localhost",', '"localhost", "other.example",'))
    assert folder.settings() == settings
    before = content(folder.path)
    with pytest.raises(ConfigError, match=r"server\.crt is there, and is not for other\.example:"):
        initialize(folder, settings)
    assert content(folder.path) == before
    folder.certificate.unlink()
    initialize(folder, settings)
    initialize(folder, settings)


def test_a_proxy_that_listens_elsewhere_than_the_settings_say_is_named(folder, capsys):
    initialize(folder, SETTINGS)
    words = f"! {folder.nginx} is not what federation.toml gives: move it away"
    assert words not in capsys.readouterr().out
    settings = SETTINGS.replace(listen="127.0.0.1:9444")
    text = folder.configuration.read_text()
    folder.configuration.write_text(text.replace("127.0.0.1:9092", "127.0.0.1:9444"))
    before = folder.nginx.read_text()
    initialize(folder, settings)
    assert words in capsys.readouterr().out
    assert folder.nginx.read_text() == before


def test_a_list_of_removed_members_where_none_can_be_is_said_and_the_rest_is_made(tmp_path, capsys):
    nowhere = tmp_path / ("x" * 300)  # Not even whether it is there can be asked.
    folder = FederationFolder(tmp_path / "server", nowhere)
    initialize(folder, SETTINGS)
    assert "! the list of removed members cannot be written" in capsys.readouterr().out
    assert folder.settings() == SETTINGS


def test_a_new_list_of_removed_members_is_said_once(tmp_path, capsys):
    folder = make_federation(tmp_path / "server")
    words = f"made {folder.removals}: put the list of an earlier host in its place"
    assert words in capsys.readouterr().out
    initialize(folder, SETTINGS)
    assert words not in capsys.readouterr().out


def test_a_superlink_is_told_who_was_removed(folder, monkeypatch):
    """By the list, and by the keys that could not be written into it."""
    environment = {}
    monkeypatch.setattr(server, "become", lambda *_, **variables: environment.update(variables))
    start_superlink(folder, [], ["aa", "bb"])
    assert environment["FEDIF_REMOVED_MEMBERS"] == str(folder.removals)
    assert environment["FEDIF_REMOVED_KEYS"] == "aa bb"


def test_a_user_without_a_name_has_a_proxy_too(tmp_path, monkeypatch):
    def owner(_: Path) -> str:
        raise KeyError("getpwuid(): uid not found: 7777")

    monkeypatch.setattr(Path, "owner", owner)
    assert "user nobody;" in make_federation(tmp_path).nginx.read_text()


@pytest.mark.parametrize("name", ["ca", "server"])
def test_a_key_that_was_lost_is_not_made_anew_beside_its_certificate(folder, name):
    (folder.path / f"{name}.key").unlink()
    before = content(folder.path)
    with pytest.raises(ConfigError, match=rf"{name}\.crt is there, but {name}\.key is not"):
        initialize(folder, SETTINGS)
    assert content(folder.path) == before


def test_a_lost_certificate_of_the_authority_is_not_replaced_by_another(folder):
    """Members know the first one: answers to their invitations would be refused."""
    folder.authority.unlink()
    before = content(folder.path)
    with pytest.raises(ConfigError, match=r"server\.crt is there, but ca\.crt is not: restore it"):
        initialize(folder, SETTINGS)
    assert content(folder.path) == before


def test_a_certificate_that_has_ended_is_said_to_have(folder, monkeypatch):
    folder.certificate.unlink()
    monkeypatch.setattr(certificates, "SERVER_DAYS", -0.5)
    initialize(folder, SETTINGS)
    end = certificates.read_certificate(folder.certificate).not_valid_after_utc
    warnings = state_of(folder, Registry())["warnings"]
    assert f"the server's certificate ended on {end:%Y-%m-%d}" in warnings


def test_a_superlink_whose_certificate_has_ended_does_not_start(folder, monkeypatch):
    """No member could connect, and its log would not say why."""
    monkeypatch.setattr(server, "become", lambda *_, **__: None)
    folder.certificate.unlink()
    monkeypatch.setattr(certificates, "SERVER_DAYS", -0.5)
    initialize(folder, SETTINGS)
    end = certificates.read_certificate(folder.certificate).not_valid_after_utc
    with pytest.raises(ConfigError, match=rf"server\.crt ended on {end:%Y-%m-%d}.*renew it"):
        start_superlink(folder, [])
    folder.certificate.unlink()
    monkeypatch.setattr(certificates, "SERVER_DAYS", 1)
    initialize(folder, SETTINGS)
    start_superlink(folder, [])


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
        seen = state_of(folder, registry)
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


@pytest.mark.parametrize(
    ("came", "went", "seen"),
    [
        ("2026-10-01 11:00:00Z", "N/A", "2026-10-01 13:00:00Z"),
        ("2026-10-01 12:30:00Z", "2026-10-01 12:00:00Z", "2026-10-01 13:00:00Z"),
        ("2026-10-01 11:00:00Z", "2026-10-01 12:00:00Z", "2026-10-01 12:00:00Z"),
        ("N/A", "N/A", "never"),
    ],
)
def test_a_member_that_is_removed_while_it_is_online_was_seen_then(
    folder, tmp_path, monkeypatch, came, went, seen
):
    """Flower notes that its registration ended, and not that it went offline."""
    registry = Registry()
    add(folder, answer_of(folder, "ada", tmp_path / "ada"), registry)
    remove(folder, "ada", registry)
    nodes = registry.nodes()
    times = {"online-at": came, "offline-at": went, "deleted-at": "2026-10-01 13:00:00Z"}
    nodes["1000"] |= times
    monkeypatch.setattr(registry, "nodes", lambda: nodes)
    with serving(folder) as settings:
        folder.configuration.write_text(settings)
        [member] = state_of(folder, registry)["members"]
    assert (member["state"], member["online"], member["last_seen"]) == ("removed", False, seen)


def test_a_member_whose_registration_has_ended_is_not_only_offline(folder, tmp_path):
    """The operator has ended it by Flower's own command: the records do not know of it."""
    registry = Registry()
    add(folder, answer_of(folder, "ada", tmp_path / "ada"), registry)
    registry.unregister("1000")
    with serving(folder) as settings:
        folder.configuration.write_text(settings)
        seen = state_of(folder, registry)
    assert seen["warnings"][0] == (
        "the SuperLink has ended the registration of ada, node 1000, and takes its key no more: "
        "`fedif federation remove-member ada`, then invite it by another name"
    )


@pytest.mark.parametrize(("down", "there"), [("listen", True), ("superlink", False)])
def test_what_does_not_answer_is_said_of_itself_alone(folder, tmp_path, down, there):
    registry = Registry()
    add(folder, answer_of(folder, "ada", tmp_path / "ada"), registry)
    with serving(folder, **{down: "127.0.0.1:1"}) as settings:
        folder.configuration.write_text(settings)
        seen = state_of(folder, registry)
    assert (seen["members"][0]["online"], seen["superlink"] == "") == (there or None, there)
    (warning,) = seen["warnings"]
    assert "ca.crt answers at 127.0.0.1:1: " in warning


@pytest.mark.parametrize(
    "listen", ["::1", "2001:db8::7", "a:65536", ":9092", "a", "[::1]", "a b:1"]
)
def test_an_address_that_is_none_is_refused(listen):
    with pytest.raises(ConfigError, match=re.escape(f"listen = {listen!r}; allowed: HOST:PORT")):
        SETTINGS.replace(listen=listen)


@pytest.mark.parametrize(
    ("bind", "here"),
    [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("[2001:db8::7]:1", "[2001:db8::7]:1")],
)
def test_a_server_s_own_host_reaches_it_where_it_listens(bind, here):
    assert SETTINGS.replace(superlink=bind).local_address == here
    assert SETTINGS.replace(listen=bind, hosts=["::7"]).address == "[::7]:1"
