from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from tests.consortium.commands.typed import call


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    places = {"FLWR_HOME": "flower", "FEDIF_FEDERATION": "server", "FEDIF_MEMBER": "node"}
    for name, place in places.items():
        monkeypatch.setenv(name, str(tmp_path / place))


@pytest.fixture
def server(tmp_path) -> Path:
    call("federation", "init", "consortium", "localhost", "--listen", "127.0.0.1:1")
    return tmp_path / "server"


@pytest.mark.parametrize("spelled", ["..", "link"])
def test_the_list_of_removals_is_one_however_its_folder_is_spelled(
    server, tmp_path, monkeypatch, spelled
):
    beside = tmp_path / "server.removed.csv"
    beside.unlink()
    (server / "sub").mkdir()
    (tmp_path / "link").symlink_to(server)
    monkeypatch.chdir(server / "sub")
    folder = {"..": "..", "link": tmp_path / "link"}[spelled]
    call("federation", "invite", "ada", "--in", folder)
    call("federation", "remove-member", "ada", "--in", folder)
    assert [row["name"] for row in read_rows(beside)] == ["ada"]
    assert list(tmp_path.rglob("*.removed.csv")) == [beside]


def test_the_list_of_removals_lies_where_the_environment_says(server, tmp_path, monkeypatch):
    """In a container, what is beside the folder is read-only."""
    (tmp_path / "server.removed.csv").unlink()
    monkeypatch.setenv("FEDIF_REMOVED_MEMBERS", str(tmp_path / "removed" / "members.csv"))
    (tmp_path / "removed").mkdir()
    call("federation", "invite", "ada")
    call("federation", "remove-member", "ada")
    assert [row["name"] for row in read_rows(tmp_path / "removed" / "members.csv")] == ["ada"]
    assert not (tmp_path / "server.removed.csv").exists()


def test_from_an_invitation_to_an_answer_and_what_a_host_still_lacks(server, tmp_path):
    call("federation", "invite", "hospital-a")
    invitation = server / "invitations" / "hospital-a.invitation.toml"
    data, policy = tmp_path / "data", tmp_path / "member-policy.toml"
    for name in ("cat", "dog"):
        (data / "train" / name).mkdir(parents=True)
    policy.write_text("")
    given = ("--data-dir", data, "-c", "attack='label-noise'", "--port", 9200, "--policy", policy)
    said = call("node", "join", invitation, *given, "--no-check")
    assert "once the operator has added this member: fedif node start" in said
    node = tomllib.loads((tmp_path / "node" / "node.toml").read_text())
    assert (node["port"], node["policy"]) == (9200, str(policy))
    assert node["config"]["data-dir"] == str(data)
    assert node["config"]["attack"] == "label-noise"
    assert (tmp_path / "node" / "hospital-a.answer.toml").exists()

    printed = call("node", "check", "-c", 'device="cpu"', status=1)
    rows = [line for line in printed.splitlines() if "│" in line]
    for name, *said in (
        ("data", " failed ", "put the data where data-dir"),
        ("app", " warning ", "fedif app approve"),
        ("signing-key", " ok "),
        ("certificate", " failed "),
    ):
        (row,) = [row for row in rows if row.startswith(f"│ {name} ")]
        assert all(words in row for words in said)


def test_data_that_are_no_images_are_the_apps_own_and_no_fault(server, tmp_path):
    """A member of a federation about tables has no images, and its host can take part."""
    call("federation", "invite", "hospital-a")
    invitation = server / "invitations" / "hospital-a.invitation.toml"
    (tmp_path / "data").mkdir()
    call("node", "join", invitation, "--data-dir", tmp_path / "data", "--no-check")
    printed = call("node", "check", "-c", 'device="cpu"', status=1)  # No server is there.
    [row] = [line for line in printed.splitlines() if line.startswith("│ data ")]
    assert " warning " in row
    assert "no images here" in row


def test_a_status_that_is_not_well_has_an_exit_status(server):
    call("federation", "invite", "hospital-a")
    said = json.loads(call("federation", "status", "--json", status=1))
    assert said["members"][0]["state"] == "invited"
    assert said["warnings"][0].startswith("no server that is known by ")


def test_a_certificate_is_renewed_by_init_with_name_and_hosts(server):
    """What the federation was first made with is not given a second time."""
    before = (server / "server.crt").read_bytes()
    (server / "server.crt").unlink()
    call("federation", "init", "consortium", "localhost")
    assert (server / "server.crt").read_bytes() != before
    assert tomllib.loads((server / "federation.toml").read_text())["listen"] == "127.0.0.1:1"
    with pytest.raises(ConfigError, match=r"federation\.toml has other values of "):
        call("federation", "init", "consortium", "localhost", "--listen", "127.0.0.1:2")
