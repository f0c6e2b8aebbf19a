from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from fedif_consortium.federation.flower import Flower, FlowerCommandError, connect, run_to_end
from fedif_flower.errors import ConfigError, TrainingFailedError

PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "status", "match"),
    [
        ('{"success": false, "error-message": "no\\n such key"}', 1, "no such key"),
        ("", 1, "nothing"),
        ("{ no JSON", 0, "{ no JSON"),
    ],
)
def test_what_flower_refuses_is_said_in_its_words(tmp_path, monkeypatch, text, status, match):
    program = tmp_path / "flwr"
    program.write_text(f"#!{sys.executable}\nprint({text!r})\nraise SystemExit({status})\n")
    program.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
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
    """A SuperLink whose answers to how a run is are given."""

    connection = "consortium"

    def __init__(self, *answers: str) -> None:
        self.answers, self.followed = list(answers), 0

    def submit(self, app: Path, run_config: str) -> int:
        assert (app, run_config) == (PROJECT, "num-server-rounds=1")
        return 9

    def follow(self, run_id: int) -> None:
        self.followed += 1

    def runs(self, *arguments: object) -> list[dict[str, str]]:
        assert arguments == ("--run-id", 9)
        status = self.answers.pop(0)
        if status == "unavailable":
            raise FlowerCommandError(status)
        return [{"status": status, "status-details": "why"}]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("num-clinets=2", "unknown key 'num-clinets'; did you mean num-clients"),
        ("{}/given.toml", "unknown key 'data.lenght'; did you mean data.length"),
        ("num-clients", "cannot read 'num-clients'"),
    ],
)
def test_a_key_that_the_app_lacks_is_named_before_anything_is_submitted(tmp_path, given, match):
    config = "[tool.flwr.app.config]\nnum-clients = 4\ndata.length = 1\n"
    (tmp_path / "pyproject.toml").write_text(config)
    (tmp_path / "given.toml").write_text("num-clients = 2\n[data]\nlenght = 2\n")
    runs = Runs()
    with pytest.raises(ConfigError, match=match):
        run_to_end(runs, tmp_path, given.format(tmp_path))
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.raises(ConfigError, match=r"is no app of Flower|cannot read"):
        run_to_end(runs, tmp_path, given.format(tmp_path))
    assert runs.followed == 0


def test_a_run_is_followed_to_its_end_by_a_superlink_that_may_not_answer_at_once(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    runs = Runs("unavailable", "unavailable", "running", "unavailable", "finished:completed")
    run_to_end(runs, PROJECT, "num-server-rounds=1")
    assert (runs.answers, runs.followed) == ([], 5)
    with pytest.raises(TrainingFailedError, match="run 9: finished:failed why"):
        run_to_end(Runs("finished:failed"), PROJECT, "num-server-rounds=1")
    with pytest.raises(FlowerCommandError):
        run_to_end(Runs(*["unavailable"] * 10), PROJECT, "num-server-rounds=1")
