from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from unittest.mock import call, create_autospec

import pytest

from fedif_consortium.federation.flower import Flower, FlowerCommandError, connect, run_to_end
from fedif_flower.errors import ConfigError, TrainingFailedError

PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "status", "match"),
    [
        ('{"success": false, "error-message": "no\\n such key"}', 1, "no such key"),
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


@pytest.mark.parametrize("other", ["x", "local"])
def test_a_connection_is_added_beside_others_and_once(tmp_path, flower_home, other):
    config, authority = flower_home / "config.toml", tmp_path / "ca.crt"
    if other == "local":  # Flower's own, without which `flwr run` finds nothing.
        config.unlink()
    for _ in range(2):
        connect("b.c", "b:2", authority)
    found = tomllib.loads(config.read_text())["superlink"]
    assert (found["default"], found[other].keys()) == (other, {"address"})
    assert found["b.c"] == {"address": "b:2", "root-certificates": str(authority)}
    for taken in (("b.c", "b:3", authority), ("b.c", "b:2", config), ("default", "b:2", authority)):
        with pytest.raises(ConfigError, match=f"has another connection '{taken[0]}' than to b:"):
            connect(*taken)


@pytest.mark.parametrize("text", ["[", "superlink = 3", "\xff"])
def test_a_file_of_flower_s_that_is_none_is_named(tmp_path, flower_home, text):
    (flower_home / "config.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.toml|superlink = 3"):
        connect("d", "b:3", tmp_path / "ca.crt")


def superlink(*answers: str):
    """Return what stands for a SuperLink that answers so to how a run is."""
    found = create_autospec(Flower, instance=True, connection="consortium")
    found.submit.return_value = 9
    found.runs.side_effect = [
        FlowerCommandError(status)
        if status == "unavailable"
        else [{"status": status, "status-details": "why"}]
        for status in answers
    ]
    return found


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("num-clinets=2", "unknown key 'num-clinets'; did you mean num-clients"),
        ("{}/given.toml", "unknown key 'data.lenght'; did you mean data.length"),
    ],
)
def test_a_key_that_the_app_lacks_is_named_before_anything_is_submitted(tmp_path, given, match):
    config = "[tool.flwr.app.config]\nnum-clients = 4\ndata.length = 1\n"
    (tmp_path / "given.toml").write_text("num-clients = 2\n[data]\nlenght = 2\n")
    runs = superlink()
    for text, expected in ((config, match), ("", "is no app of Flower")):
        (tmp_path / "pyproject.toml").write_text(text)
        with pytest.raises(ConfigError, match=expected):
            run_to_end(runs, tmp_path, given.format(tmp_path))
    runs.submit.assert_not_called()


def test_a_run_is_followed_to_its_end_by_a_superlink_that_may_not_answer_at_once(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    config = 'num-server-rounds=1 resume="auto"'
    answers = "unavailable", "unavailable", "running", "unavailable", "finished:completed"
    runs = superlink(*answers)
    run_to_end(runs, PROJECT, config.replace('"', ""))  # As a shell hands it on.
    runs.submit.assert_called_once_with(PROJECT, config)
    assert runs.follow.call_args_list == [call(9)] * len(answers)
    with pytest.raises(TrainingFailedError, match="run 9: finished:failed why"):
        run_to_end(superlink("finished:failed"), PROJECT, config)
    with pytest.raises(FlowerCommandError):
        run_to_end(superlink(*["unavailable"] * 10), PROJECT, config)
