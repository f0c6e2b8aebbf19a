"""What ``fedif new`` writes: each template is a whole app that learns from data of its own."""

from __future__ import annotations

import importlib.util
import io
import re
import tomllib
import zipfile
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict
from flwr.serverapp import ServerApp

from fedif_consortium.parts import server_parts
from fedif_flower import load, new_app
from fedif_flower.devices import torch_threads
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.new_app import DEFAULT, KINDS, write_app
from fedif_flower.run.config import RunConfig
from fedif_flower.tasks.task import Task

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    "kind",
    [kind if kind == DEFAULT else pytest.param(kind, marks=pytest.mark.all) for kind in KINDS],
)
def test_an_app_imports_and_learns(kind, tmp_path, monkeypatch):
    app, package = tmp_path / f"new-{kind}", f"new_{kind}".replace("-", "_")
    write_app(app, kind)
    monkeypatch.syspath_prepend(app)
    project = tomllib.loads((app / "pyproject.toml").read_text())
    settings = flatten_dict(project["tool"]["flwr"]["app"]["config"])  # As Flower hands it on.
    config = RunConfig.from_run_config(settings | {"num-clients": 2}, server_parts())
    assert config.data_dir == ""
    # All members get the run config: no path of this machine stands in it. On a federation's server
    # results lie where its backup and its service's rights are.
    assert config.output_dir == "runs"
    assert str(tmp_path) not in (app / "pyproject.toml").read_text()
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
    assert load(run_dir).lines("rounds")[-1]["test_accuracy"] > 0.5


def test_all_modules_of_an_app_are_sent_to_its_nodes(tmp_path):
    """Its own model may lie in a package of its package."""
    app = tmp_path / "new-app"
    write_app(app)
    nets = app / "new_app" / "nets" / "small"
    nets.mkdir(parents=True)
    for folder in (nets, nets.parent):
        (folder / "__init__.py").write_text("")
    (nets / "net.py").write_text("WIDTH = 8\n")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        sent = {name for name in bundle.namelist() if name.endswith(".py")}
    written = {path.relative_to(app).as_posix() for path in (app / "new_app").rglob("*.py")}
    assert {"new_app/task.py", "new_app/nets/small/net.py"} <= written == sent
    project = tomllib.loads((app / "pyproject.toml").read_text())
    installed = project["tool"]["setuptools"]["packages"]["find"]["include"]
    for package in ("new_app", "new_app.nets", "new_app.nets.small"):
        assert any(fnmatch(package, pattern) for pattern in installed), package


@pytest.mark.parametrize("page", ["consortium", "member-policy"])
def test_keys_that_operators_read_of_stand_in_a_new_app(page, tmp_path):
    """Flower refuses a key that the app's ``pyproject.toml`` does not list."""
    app = tmp_path / "new-app"
    write_app(app)
    project = tomllib.loads((app / "pyproject.toml").read_text())
    listed = flatten_dict(project["tool"]["flwr"]["app"]["config"])
    text = (DOCS / f"{page}.md").read_text()
    words = {word.strip("\"'").partition("=")[0] for word in re.split(r"[\s`(),;:]+", text)}
    config = RunConfig.from_run_config(RunConfig.defaults(), server_parts()).to_mapping()
    named = {key for key in config if key in words and not key.isalpha()}
    assert "evidence.receipts" in named
    assert named <= listed.keys()
    in_sections = {key for key in named if "." in key}
    assert {key: listed[key] for key in in_sections} == {key: config[key] for key in in_sections}


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
        patch.setattr(new_app, "write_atomically", full)
        with pytest.raises(StorageError, match="no space left"):
            write_app(folder)
    assert set(tmp_path.rglob("*")) == before
    paths = write_app(folder)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(paths)


@pytest.mark.parametrize(
    "name",
    [
        *("torch", "fedif-flower", "json", "Tests", "build"),
        *("rich", "ray", "pydantic", "fedif-studies"),  # What is imported by what apps import.
        "google",  # It has no module of its own, but packages lie in it.
    ],
)
def test_a_name_that_is_taken_is_refused_before_anything_is_written(name, tmp_path):
    """A package ``torch`` beside the app would be imported in place of PyTorch."""
    with pytest.raises(ConfigError, match=f"^'{name}' cannot name a package: .* is the name of"):
        write_app(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_itself_does_not_take_the_name_but_a_module_elsewhere_does(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_rain").mkdir()  # From its parent it can be imported, empty as it is.
    (tmp_path / "own_snow.py").write_text("")
    assert write_app(tmp_path / "own_rain")
    with pytest.raises(ConfigError, match="'own_snow' is the name of"):
        write_app(tmp_path / "apps" / "own-snow")


def test_a_name_that_is_too_long_cannot_be_written(tmp_path):
    for length in (300, 250):  # Files of its name, and temporary ones beside it.
        with pytest.raises(StorageError, match="File name too long"):
            write_app(tmp_path / (length * "x"))
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_a_task_that_is_built_in_is_refused(tmp_path):
    """Its entry point would stand behind the built-in task, which would be run in its place."""
    with pytest.raises(
        ConfigError, match="'Images' cannot name a task: fedif-flower has a task 'images'"
    ):
        write_app(tmp_path / "Images", "images")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["1st", "für", "class", "a+b", "_x", "x_", "a--"])
def test_a_name_that_no_package_can_have_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="cannot name a package"):
        write_app(tmp_path / name)
    assert not list(tmp_path.iterdir())
