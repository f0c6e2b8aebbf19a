from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from fedif_consortium.federation.flower import (
    Flower,
    FlowerCommandError,
    connect,
    run_to_end,
)
from fedif_flower.errors import ConfigError

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def flwr(tmp_path, monkeypatch):
    """Put a program in ``flwr``'s place; return what it was called with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    called = tmp_path / "called.json"

    def answers(text: str, status: int = 0, error: str = "") -> Path:
        code = (
            f"#!{sys.executable}\nimport json, pathlib, sys\n"
            f"pathlib.Path({str(called)!r}).write_text(json.dumps(sys.argv[1:]))\n"
            f"print({text!r})\nprint({error!r}, end='', file=sys.stderr)\nsys.exit({status})\n"
        )
        (programs / "flwr").write_text(code)
        (programs / "flwr").chmod(0o755)
        return called

    monkeypatch.setattr("sysconfig.get_path", lambda _: str(programs))
    return answers


@pytest.mark.parametrize(
    ("text", "status", "match"),
    [
        ('{"success": false, "error-message": "no\\n such key"}', 1, "no such key"),
        ("", 1, "nothing"),
        ("{ no JSON", 0, "{ no JSON"),
    ],
)
def test_what_flower_refuses_is_said_in_its_words(flwr, text, status, match):
    flwr(text, status)
    with pytest.raises(FlowerCommandError, match=rf"`flwr supernode list` failed: .*{match}"):
        Flower("consortium").nodes()


def test_a_connection_is_added_beside_others_and_once(tmp_path, flower_home):
    (flower_home).mkdir()
    config = flower_home / "config.toml"
    config.write_text('[superlink]\ndefault = "x"\n[superlink.x]\naddress = "a:1"')
    for _ in range(2):
        connect("b.c", "b:2", tmp_path / "ca.crt")
    found = tomllib.loads(config.read_text())["superlink"]
    assert found["x"] == {"address": "a:1"}
    assert found["b.c"] == {"address": "b:2", "root-certificates": str(tmp_path / "ca.crt")}
    with pytest.raises(ConfigError, match=r"has a connection 'b\.c' to 'b:2', not to 'b:3'"):
        connect("b.c", "b:3", tmp_path / "ca.crt")
    config.write_text("[")
    with pytest.raises(ConfigError, match=r"config\.toml: "):
        connect("d", "b:3", tmp_path / "ca.crt")


class Runs:
    """A SuperLink on which a run ends when it was followed for the second time."""

    connection = "consortium"

    def __init__(self) -> None:
        self.followed = 0

    def submit(self, app: Path, run_config: str) -> int:
        assert (app, run_config) == (PROJECT, "num-server-rounds=1")
        return 9

    def follow(self, run_id: int, shown: int) -> int:
        assert shown == 100 * self.followed
        self.followed += 1
        return shown + 100

    def runs(self, *arguments: object) -> list[dict[str, str]]:
        assert arguments == ("--run-id", 9)
        status = "running" if self.followed == 1 else "finished:completed"
        return [{"status": status, "status-details": ""}]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_a_log_that_broke_off_goes_on_after_its_last_byte(flwr, capfd):
    flower = Flower("consortium")
    flwr("one", 1, "unavailable")
    shown = flower.follow(9, 0)
    flwr("one\ntwo\n\N{SNOWMAN}")
    shown = flower.follow(9, shown)
    flwr("one", 1)
    assert flower.follow(9, shown) == shown == len("one\ntwo\n\N{SNOWMAN}\n".encode())
    said = capfd.readouterr()
    assert (said.out, said.err) == ("one\ntwo\n\N{SNOWMAN}\n", "")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("num-clinets=2", "unknown key 'num-clinets'; did you mean num-clients"),
        ("{}.toml", "unknown key 'data.lenght'; did you mean data.length"),
        ("num-clients", "cannot read 'num-clients'"),
    ],
)
def test_a_key_that_the_app_lacks_is_named_before_anything_is_submitted(tmp_path, given, match):
    config = "[tool.flwr.app.config]\nnum-clients = 4\ndata.length = 1\n"
    (tmp_path / "pyproject.toml").write_text(config)
    (tmp_path / "given.toml").write_text("num-clients = 2\n[data]\nlenght = 2\n")
    runs = Runs()
    with pytest.raises(ConfigError, match=match):
        run_to_end(runs, tmp_path, given.format(tmp_path / "given"))
    assert runs.followed == 0


def test_a_superlink_that_does_not_answer_for_a_while_is_asked_again(monkeypatch):
    runs, failing = Runs(), [True, True, False, True, False]
    answer = runs.runs

    def asked(*arguments: object) -> list[dict[str, str]]:
        if failing.pop(0):
            raise FlowerCommandError("unavailable")
        return answer(*arguments)

    monkeypatch.setattr(runs, "runs", asked)
    run_to_end(runs, PROJECT, "num-server-rounds=1")
    assert failing == []
