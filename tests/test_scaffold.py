"""What ``fedif new`` writes: each template is a whole app that learns from data of its own."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from typer.testing import CliRunner

from fedif_flower import load, scaffold
from fedif_flower.cli import cli
from fedif_flower.devices import torch_threads
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.run.config import RunConfig
from fedif_flower.scaffold import DEFAULT, KINDS, write_app
from fedif_flower.tasks.task import Task


def written(folder: Path) -> dict[str, str]:
    """Return the texts of all files in a folder, by their paths."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def needed(kind: str) -> None:
    """Skip a test of a template whose packages are not installed."""
    for requirement in KINDS[kind].requires:
        pytest.importorskip(requirement.split(">=")[0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_app_imports_and_learns(kind, tmp_path, monkeypatch):
    needed(kind)
    app, package = tmp_path / f"new-{kind}", f"new_{kind}".replace("-", "_")
    write_app(app, kind)
    monkeypatch.syspath_prepend(app)
    project = tomllib.loads((app / "pyproject.toml").read_text())
    settings = project["tool"]["flwr"]["app"]["config"]
    config = RunConfig.from_run_config(settings | {"num-clients": 2})
    assert config.data_dir == ""
    # Flower runs it where the SuperLink was started, which may be another app's folder.
    assert config.output_dir == str(app / "runs")
    task, server, client = (
        import_module(f"{package}.{name}") for name in ("task", "server_app", "client_app")
    )
    assert isinstance(task.task, Task)
    assert (type(server.app), type(client.app)) == (ServerApp, ClientApp)
    spec = importlib.util.spec_from_file_location(f"{package}_test", app / "tests" / "test_task.py")
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    with torch_threads(1):
        own.test_two_clients_learn(tmp_path / "runs")
    [run_dir] = (tmp_path / "runs").iterdir()
    accuracy = load(run_dir).lines("rounds")[-1]["test_accuracy"]
    assert (accuracy or 1.0) > 0.5  # None where nothing is sorted into classes.


@pytest.mark.parametrize("kind", KINDS)
def test_an_app_is_tidy_and_typed(kind, tmp_path):
    app = tmp_path / "own-app"
    write_app(app, kind)
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--select", "E,F,W,I,N,D,UP,B,C4,SIM,RUF,RET", "--ignore", "D203,D213"]
    whole = ["--isolated", "--no-cache", "--line-length", "100", "--target-version", "py311"]
    for command in (["check", *rules, *whole], ["format", "--check", *whole]):
        done = subprocess.run(
            [*ruff, *command, "own_app"], cwd=app, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for node in ast.walk(ast.parse((app / "own_app" / "task.py").read_text())):
        if isinstance(node, ast.FunctionDef):
            own = [argument for argument in node.args.args if argument.arg != "self"]
            assert node.returns is not None, node.name
            assert all(argument.annotation is not None for argument in own), node.name


def test_only_the_task_and_its_settings_differ(tmp_path):
    apps = {}
    for kind in KINDS:
        write_app(tmp_path / kind / "app", kind)
        apps[kind] = written(tmp_path / kind / "app")
    shutil.rmtree(tmp_path / DEFAULT)
    write_app(tmp_path / DEFAULT / "app")
    assert written(tmp_path / DEFAULT / "app") == apps[DEFAULT]
    same = set.intersection(*({*app.items()} for app in apps.values()))
    differ = {name for app in apps.values() for name in app} - {name for name, _ in same}
    assert differ == {"app/task.py", "pyproject.toml", "tests/test_task.py"}
    assert '"peft>=0.18", "transformers>=5"]' in apps["language-model"]["pyproject.toml"]


def test_help_has_a_line_for_each_template():
    shown = CliRunner().invoke(cli, ["new", "--help"]).output
    for name, kind in KINDS.items():
        assert any(name in line and kind.about in line for line in shown.splitlines()), shown


def test_an_unknown_template_is_named_with_the_choices(tmp_path):
    result = CliRunner().invoke(cli, ["new", str(tmp_path / "app"), "--template", "video"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"template = 'video'; allowed: {', '.join(KINDS)}"
    assert not list(tmp_path.iterdir())


def test_what_is_not_installed_is_said(tmp_path, monkeypatch):
    lacking = KINDS["text"]._replace(requires=("torch>=2", "no-such-package>=1"))
    monkeypatch.setitem(KINDS, "text", lacking)
    result = CliRunner().invoke(cli, ["new", str(tmp_path / "app"), "--template", "text"])
    assert result.exit_code == 0
    assert "Not installed here: no-such-package; `pip install -e .`" in result.output
    assert '"torch>=2", "no-such-package>=1"]' in (tmp_path / "app/pyproject.toml").read_text()


@pytest.mark.parametrize("is_there", [False, True])
def test_all_files_are_written_or_none(is_there, tmp_path, monkeypatch):
    folder = tmp_path / "app"
    if is_there:
        folder.mkdir()
    before = set(tmp_path.rglob("*"))
    calls = []

    def full(path: Path, text: str) -> None:
        calls.append(path)
        if len(calls) == 5:
            raise StorageError("no space left")
        path.write_text(text)

    with monkeypatch.context() as patch:
        patch.setattr(scaffold, "write_atomically", full)
        with pytest.raises(StorageError, match="no space left"):
            write_app(folder)
    assert set(tmp_path.rglob("*")) == before
    paths = write_app(folder)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(paths)


def test_an_empty_folder_stays_the_one_it_is(tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    number = folder.stat().st_ino
    write_app(folder)
    assert folder.stat().st_ino == number


@pytest.mark.parametrize("name", ["1st", "für", "class", "a+b"])
def test_a_name_that_no_package_can_have_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="cannot name a package"):
        write_app(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_anything_is_refused(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine.txt").write_text("mine")
    for folder in ("app", "app/mine.txt"):
        with pytest.raises(ConfigError, match="exists already"):
            write_app(tmp_path / folder)
    assert written(tmp_path / "app") == {"mine.txt": "mine"}
