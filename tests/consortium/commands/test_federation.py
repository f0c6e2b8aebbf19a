from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedif_flower.errors import FedIFError
from fedif_studies.commands import cli


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setenv("FEDIF_FEDERATION", str(tmp_path / "server"))
    monkeypatch.setenv("FEDIF_MEMBER", str(tmp_path / "node"))


def call(*words: object) -> str:
    found = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture
def server(tmp_path) -> Path:
    call("federation", "init", "consortium", "localhost", "--listen", "127.0.0.1:9092")
    return tmp_path / "server"


def test_from_an_invitation_to_an_answer(server, tmp_path):
    call("federation", "invite", "hospital-a")
    invitation = server / "invitations" / "hospital-a.invitation.toml"
    (tmp_path / "data").mkdir()
    given = ("--data-dir", tmp_path / "data", "-c", "attack='label-noise'", "--port", 9200)
    said = call("node", "join", invitation, *given, "--no-check")
    assert "once the operator has added this member: fedif node start" in said
    node = tomllib.loads((tmp_path / "node" / "node.toml").read_text())
    assert node["port"] == 9200
    assert node["config"]["data-dir"] == str(tmp_path / "data")
    assert node["config"]["attack"] == "label-noise"
    assert (tmp_path / "node" / "hospital-a.answer.toml").exists()


def test_a_status_that_is_not_well_has_an_exit_status(server):
    call("federation", "invite", "hospital-a")
    told = CliRunner().invoke(cli, ["federation", "status", "--json"])
    assert told.exit_code == 1
    said = json.loads(told.output)
    assert said["members"][0]["state"] == "invited"
    assert said["warnings"][0].startswith("no server that is known by ")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["federation", "remove-member", "x"], "there is no member 'x'; members: none"),
        (["federation", "init", "a b", "localhost"], "name = 'a b'"),
        (["node", "start"], r"has no node\.toml"),
    ],
)
def test_what_is_wrong_is_one_sentence(server, words, match):
    with pytest.raises(FedIFError, match=match):
        call(*words)
