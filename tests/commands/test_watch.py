"""``fedif watch`` and ``fedif runs``, as they are typed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from io import StringIO

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedif_flower.cli import cli
from fedif_flower.commands import watch
from fedif_flower.errors import ConfigError
from tests.run.watch.made import client, make_folder


def typed(*arguments: object) -> str:
    """Return what a command prints; raise what it raises."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_page_is_written_to_a_file(tmp_path):
    folder = make_folder(tmp_path / "run", [client(1, 1)], accuracies=[0.1, 0.5])
    folder.report.write_text("")
    before = {path.name for path in folder.path.iterdir()}
    page = tmp_path / "page.html"
    assert str(page) in typed("watch", folder.path, "--write", page)
    assert "round 1 of 10 is over" in page.read_text()
    assert 'href="run/report.md"' in page.read_text()
    assert {path.name for path in folder.path.iterdir()} == before


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        typed("watch", tmp_path)
    with pytest.raises(ConfigError, match="holds no run"):
        typed("watch", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no run"):
        typed("runs", tmp_path)
    with pytest.raises(ConfigError, match="is no directory"):
        typed("runs", tmp_path / "nowhere")


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
    found = {run["run"]: run for run in json.loads(typed("runs", tmp_path, "--json"))}
    assert list(found)[-1] == "sweep/old"
    assert set(found) == {"[new]", "damaged", "sweep/old"}
    assert "config.json" in found["damaged"]["state"]
    old, new = found["sweep/old"], found["[new]"]
    assert 7100 < old.pop("age_seconds") < 7300
    assert old == {
        "run": "sweep/old",
        "state": "stopped",
        "strategy": "fedif",
        "data": "digits",
        "rounds": 1,
        "num_rounds": 10,
        "accuracy": 0.5,
        "figure": "test accuracy 50.0%",
    }
    assert (new["state"], new["rounds"], new["accuracy"]) == ("finished", 2, 0.75)
    table = typed("runs", tmp_path)
    assert "[new]" in table
    assert "2 / 2" in table


@pytest.mark.parametrize("columns", ["200", "80", "20"])
def test_a_listed_run_s_name_is_whole_in_any_terminal(tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    name = "paper/fashion-mnist/label-noise/[fedif]-with-momentum-seed-0"
    make_folder(tmp_path / name, [client(1, 1)], accuracies=[0.1, 0.5])
    shown = typed("runs", tmp_path)
    assert name in shown
    assert "1 / 10" in shown
    assert ("━" in shown) == (columns == "200")


@pytest.mark.parametrize(
    ("terminal", "display", "opened"),
    [(True, ":0", True), (True, "", False), (False, ":0", False)],
)
def test_a_browser_is_opened_where_there_is_a_desktop(monkeypatch, terminal, display, opened):
    pages = []
    monkeypatch.setattr("webbrowser.open", pages.append)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    console = Console(file=StringIO(), force_terminal=terminal)
    watch.announce("http://127.0.0.1:1/", console)
    assert console.file.getvalue() == "Watch: http://127.0.0.1:1/\n"
    assert bool(pages) == opened


def test_a_run_is_watched_while_it_lasts(tmp_path):
    """The page is there before the run wrote anything, and gone when it is over."""
    console = Console(file=StringIO())
    with watch.watching(tmp_path / "run", console):
        url = re.search(r"http://\S+", console.file.getvalue())[0]
        assert "not written anything yet" in httpx.get(url).text
        make_folder(tmp_path / "run", [client(1, 1)], accuracies=[0.1, 0.5])
        assert "round 1 of 10 is over" in httpx.get(url).text
    assert f"fedif watch {tmp_path / 'run'}" in console.file.getvalue()


def test_the_command_serves_until_it_is_told_to_end(tmp_path):
    folder = make_folder(tmp_path, [client(1, 1)], accuracies=[0.1, 0.5])
    command = [sys.executable, "-c", "from fedif_flower.cli import main; main()"]
    with subprocess.Popen(
        [*command, "watch", str(folder.path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("Watch: ").strip()
            assert "round 1 of 10 is over" in httpx.get(url, timeout=60).text
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 1, 130, -signal.SIGINT)
