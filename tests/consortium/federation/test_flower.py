from __future__ import annotations

import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import call, create_autospec

import pytest

from fedif_consortium.federation import flower
from fedif_consortium.federation.flower import Flower, FlowerCommandError, connect, run_to_end
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.storage import write_atomically

PROJECT = Path(__file__).parents[3]


def write_flwr(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int) -> None:
    """Let a program that prints ``text`` stand for Flower's command."""
    program = folder / "flwr"
    program.write_text(f"#!{sys.executable}\nprint({text!r})\nraise SystemExit({status})\n")
    program.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(folder))


@pytest.mark.parametrize(
    ("text", "status", "match"),
    [
        ('{"success": false, "error-message": "no\\n such key"}', 1, "no such key"),
        ("{ no JSON", 0, "{ no JSON"),
    ],
)
def test_what_flower_refuses_is_said_in_its_words(tmp_path, monkeypatch, text, status, match):
    write_flwr(tmp_path, monkeypatch, text, status)
    with pytest.raises(FlowerCommandError, match=rf"`flwr supernode list` failed: .*{match}"):
        Flower("consortium").nodes()


@pytest.mark.parametrize("line", ["", "resolving {flwr, torch}", "{", "{}\n{"])
def test_an_answer_is_read_behind_lines_of_flower_s_own(tmp_path, monkeypatch, line):
    answer = '{"success": true, "run-id": "9", "more": {"a": {}}}'
    write_flwr(tmp_path, monkeypatch, f"{line}\n{answer}", 0)
    assert Flower("consortium").submit(tmp_path, "") == 9


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


def test_commands_at_the_same_time_add_each_its_connection_and_the_same_one_once(
    tmp_path, flower_home, monkeypatch
):
    def write_slowly(*arguments):
        time.sleep(0.02)
        write_atomically(*arguments)

    monkeypatch.setattr(flower, "write_atomically", write_slowly)
    names = ["b.c", "b.c", "d", "e"]
    with ThreadPoolExecutor(len(names)) as commands:
        list(commands.map(lambda name: connect(name, "b:2", tmp_path / "ca.crt"), names))
    found = tomllib.loads((flower_home / "config.toml").read_text())["superlink"]
    assert {name for name in found if name in names} == set(names)


@pytest.mark.parametrize("text", ["[", "superlink = 3", "\xff"])
def test_a_file_of_flower_s_that_is_none_is_named(tmp_path, flower_home, text):
    (flower_home / "config.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.toml|superlink = 3"):
        connect("d", "b:3", tmp_path / "ca.crt")


@pytest.mark.parametrize("said", ["ImportError: no module", ""])
def test_a_home_that_cannot_be_written_is_named_with_what_to_set(tmp_path, monkeypatch, said):
    process = CompletedProcess([], 1, "", f"Traceback\n\n{said}\n")
    monkeypatch.setattr(flower, "_flwr", lambda *_, **__: process)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "nowhere"))
    config = tmp_path / "nowhere" / "config.toml"
    words = f"cannot write {config}: set FLWR_HOME to a folder .* list`: {said or 'Traceback'}"
    with pytest.raises(ConfigError, match=words):
        connect("d", "b:3", tmp_path / "ca.crt")


def superlink(*answers: str, others: Sequence[Sequence[str]] = ((),)):
    """Return what stands for a SuperLink that answers so to how a run is.

    ``others`` are the ids of runs that go on at the first question, the second ...
    """
    found = create_autospec(Flower, instance=True, connection="consortium")
    found.submit.return_value = 9
    asked, waiting = iter(answers), iter(others)

    def runs(*arguments: object):
        if not arguments:
            going_on = next(waiting)
            if "unavailable" in going_on:
                raise FlowerCommandError("unavailable")
            done = {"run-id": 1, "status": "finished:completed"}
            return [done, *({"run-id": i, "status": "running"} for i in going_on)]
        status = next(asked)
        if status == "unavailable":
            raise FlowerCommandError(status)
        return [{"run-id": 9, "status": status, "status-details": "why"}]

    found.runs.side_effect = runs
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
            run_to_end(runs, tmp_path, given.format(tmp_path), tmp_path / "lock")
    runs.submit.assert_not_called()


@pytest.fixture
def lock(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("time.sleep", lambda _: None)
    return tmp_path / "lock"


def test_a_run_is_followed_to_its_end_by_a_superlink_that_may_not_answer_at_once(lock):
    config = 'num-server-rounds=1 resume="auto"'
    answers = "unavailable", "unavailable", "running", "unavailable", "finished:completed"
    runs = superlink(*answers)
    run_to_end(runs, PROJECT, config.replace('"', ""), lock)  # As a shell hands it on.
    runs.submit.assert_called_once_with(PROJECT, config)
    assert runs.follow.call_args_list == [call(9)] * len(answers)
    with pytest.raises(TrainingFailedError, match="run 9: finished:failed why"):
        run_to_end(superlink("finished:failed"), PROJECT, config, lock)
    with pytest.raises(TrainingFailedError, match=r"^run 9 was stopped; if rounds are left,"):
        run_to_end(superlink("finished:stopped"), PROJECT, config, lock)
    with pytest.raises(FlowerCommandError):
        run_to_end(superlink(*["unavailable"] * 10), PROJECT, config, lock)


def test_a_run_does_not_begin_beside_another_one_unless_it_is_to(lock, capsys):
    running = superlink(others=[["7", "8"]])
    with pytest.raises(ConfigError, match=r"run 7, 8 has not finished.* --queue waits .* --beside"):
        run_to_end(running, PROJECT, "", lock)
    running.submit.assert_not_called()
    run_to_end(superlink("finished:completed", others=[["7"]]), PROJECT, "", lock, beside=True)

    waited = superlink("finished:completed", others=[["7"], ["7"], []])
    run_to_end(waited, PROJECT, "", lock, queue=True)
    waited.submit.assert_called_once()
    assert capsys.readouterr().out.count("waiting for the end of run 7") == 1


def test_a_run_that_waits_for_others_cannot_begin_beside_them(lock):
    runs = superlink(others=[["7"]])
    with pytest.raises(ConfigError, match=r"--queue waits .* --beside does not; allowed: one of"):
        run_to_end(runs, PROJECT, "", lock, queue=True, beside=True)
    runs.submit.assert_not_called()


def test_who_waits_goes_on_waiting_when_an_answer_does_not_come(lock):
    lost = [["unavailable"]] * 3
    waited = superlink("finished:completed", others=[["7"], *lost, ["7"], *lost, []])
    run_to_end(waited, PROJECT, "", lock, queue=True)
    waited.submit.assert_called_once()
    gone = superlink(others=[["7"], *[["unavailable"]] * 10])
    with pytest.raises(FlowerCommandError, match="unavailable"):
        run_to_end(gone, PROJECT, "", lock, queue=True)
    # At first there is no answer to wait for: the operator shall read at once what is wrong.
    with pytest.raises(FlowerCommandError, match="unavailable"):
        run_to_end(superlink(others=lost[:1]), PROJECT, "", lock, queue=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_stops_following_a_run_reads_that_it_goes_on(lock, capsys, number):
    runs = superlink()
    runs.follow.side_effect = lambda _: signal.raise_signal(number)
    # As a terminal has it: under nohup one of them would be ignored, and is to stay so.
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_to_end(runs, PROJECT, "", lock)
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    assert "run 9 goes on; follow it: flwr log 9 consortium" in capsys.readouterr().out
