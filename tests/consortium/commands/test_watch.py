"""``fedif watch`` and ``fedif runs``, as they are typed."""

from __future__ import annotations

import json
import os
import time

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from tests.consortium.commands.typed import call
from tests.consortium.watch.made import client, make_folder


@pytest.mark.parametrize("words", [("watch", "."), ("watch", "no"), ("runs", "."), ("runs", "no")])
def test_a_folder_without_a_run_is_refused(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="holds no run"):
        call(*words)


def test_an_audit_is_no_run(tmp_path):
    """It notes its settings in a file of the same name."""
    made = make_folder(tmp_path / "audit")
    identity = RunConfig.of_records(made.config.read()).identity()
    made.rounds.path.unlink()
    made.config.write({**identity, "data": "abc"})
    with pytest.raises(ConfigError, match="holds no run"):
        call("watch", made.path)
    with pytest.raises(ConfigError, match="holds no run"):
        call("runs", tmp_path)
    # A run that has just begun has nothing but its settings.
    begun = make_folder(made.path / "begun")
    for path in begun.path.iterdir():
        if path != begun.config.path:
            path.unlink()
    assert [run["run"] for run in json.loads(call("runs", tmp_path, "--json"))] == ["audit/begun"]


def test_runs_are_listed_the_newest_first(tmp_path):
    make_folder(tmp_path / "sweep" / "old", [client(1, 1)], accuracies=[0.1, 0.5])
    for file in (tmp_path / "sweep" / "old").iterdir():
        os.utime(file, (time.time() - 7200,) * 2)
    done = make_folder(tmp_path / "[new]", accuracies=[0.1, 0.5, 0.75], num_rounds=2)
    done.summary.write({"last_round_failed": False})
    done.updates.mkdir()
    (done.updates / "rounds.csv").write_text("")  # Of a run's folder no more than itself.
    damaged = make_folder(tmp_path / "damaged")
    damaged.config.path.write_text("{")
    nested = make_folder(tmp_path / "nested")
    nested.live.path.write_text(100_000 * "[")
    make_folder(tmp_path / "words", accuracies=["excellent"])
    found = {run["run"]: run for run in json.loads(call("runs", tmp_path, "--json"))}
    assert list(found)[-1] == "sweep/old"
    assert set(found) == {"[new]", "damaged", "nested", "words", "sweep/old"}
    assert "config.json" in found["damaged"]["state"]
    assert "state.json" in found["nested"]["state"]
    assert "words cannot be read" in found["words"]["state"]
    old, new = found["sweep/old"], found["[new]"]
    assert 7100 < old.pop("age_seconds") < 7300
    said = ["sweep/old", "stopped", "fedif", 1, 10, "test accuracy 50.0%"]
    names = ["run", "state", "strategy", "rounds", "num_rounds", "result"]
    assert old == dict(zip(names, said, strict=True))
    assert (new["state"], new["rounds"], new["result"]) == ("finished", 2, "test accuracy 75.0%")
    assert "[new]" in call("runs", tmp_path)


def test_a_page_is_written_beside_the_folder_of_a_run_that_is_over(tmp_path):
    folder = make_folder(tmp_path / "run", [client(1, 1)], accuracies=[0.1, 0.5])
    for file in (folder.config, folder.rounds, folder.clients):
        os.utime(file.path, (time.time() - 7200,) * 2)
    assert "run-watch.html" in call("watch", folder.path)
    assert "round 1 of 10 is over" in (tmp_path / "run-watch.html").read_text()
    call("watch", folder.path, "--to", tmp_path / "other.html")
    assert (tmp_path / "other.html").exists()


def test_a_page_does_not_take_the_place_of_a_record(tmp_path):
    folder = make_folder(tmp_path / "run", [client(1, 1)], accuracies=[0.1, 0.5])
    before = folder.rounds.path.read_bytes()
    with pytest.raises(ConfigError, match=r"to = '.*rounds\.csv'; allowed: a page, \*\.html"):
        call("watch", folder.path, "--to", folder.rounds.path)
    assert folder.rounds.path.read_bytes() == before
