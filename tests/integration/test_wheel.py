"""The package as others get it: a wheel, in an environment and a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch

from fedif_consortium.extra import INSTALL, MODULES
from tests.integration.shell import clone, open_shell
from tests.test_docs_names import blocks_of

PROJECT = Path(__file__).parents[2]
PACKAGES = ("fedif_flower", "fedif_consortium", "fedif_studies")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", *PACKAGES):
        (source / name).symlink_to(PROJECT / name)
    build = "import os, sys, setuptools.build_meta as b; os.chdir(sys.argv[1]); b.build_wheel('..')"
    command = [sys.executable, "-c", build, str(source)]
    subprocess.run(command, check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_its_studies(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    [information] = tops - {*PACKAGES}
    assert information.endswith(".dist-info")
    assert "fedif_flower/py.typed" in names
    modules = {name for name in names if name.endswith(".py")}
    for top in PACKAGES:
        written = {str(path.relative_to(PROJECT)) for path in (PROJECT / top).rglob("*.py")}
        written = {name for name in written if "/benchmarks/" not in name}
        assert {name for name in modules if name.split("/")[0] == top} == written


class Environment:
    """An environment of its own with the wheel in it, and the dependencies of this one.

    All of them would take 10 GB and several minutes to install.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.scripts = folder / "bin"
        self.python = self.scripts / "python"
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install"]
        # pip looks beside itself too, and may take the checkout's installation for one in there.
        options = ["--quiet", "--ignore-installed", "--no-deps", "--no-index"]
        subprocess.run([*pip, *options, wheel], check=True, cwd=folder)
        self.site = next((folder / "lib").glob("python3*")) / "site-packages"
        # The dependencies of this environment, but not its checkout of the package.
        (self.site / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")

    def add_programs(self, distribution: str) -> None:
        """Write a distribution's programs, which run in here."""
        for point in metadata.distribution(distribution).entry_points:
            if point.group == "console_scripts":
                module, _, function = point.value.partition(":")
                text = PROGRAM.format(python=self.python, module=module, function=function)
                program = self.scripts / point.name
                program.write_text(text)
                program.chmod(0o755)

    def take_away_the_extra(self) -> None:
        """Let no program in here have what ``pip install .`` does not bring."""
        text = TAKEN_AWAY.format(modules=MODULES, brought=BROUGHT_BY_OTHERS)
        (self.site / "extra_taken_away.py").write_text(text)
        (self.site / "extra_taken_away.pth").write_text("import extra_taken_away\n")

    def call(self, folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment in a folder."""
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run(
            [self.scripts / command[0], *command[1:]],
            cwd=folder,
            env=own,
            capture_output=True,
            text=True,
            check=False,
        )


PROGRAM = """#!{python}
import sys

from {module} import {function}

if __name__ == "__main__":
    sys.exit({function}())
"""
# Flower, PyTorch, pydantic and httpx bring these of the extra's modules for themselves.
BROUGHT_BY_OTHERS = {
    "annotated_types",
    "anyio",
    "cryptography",
    "jinja2",
    "markupsafe",
    "starlette",
    "tomli_w",
    "uvicorn",
}
# The others are not there at all; and no module of this project may import any.
TAKEN_AWAY = """
import builtins
import sys

OURS = ("fedif_flower", "fedif_consortium", "fedif_studies", "server_app", "client_app")
imported = builtins.__import__


def refuse(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {{}}).get("__name__", "").partition(".")[0]
    module = name.partition(".")[0]
    if module in {modules} and importer in OURS:
        raise ModuleNotFoundError(f"No module named {{module!r}}", name=module)
    return imported(name, globals, locals, fromlist, level)


builtins.__import__ = refuse
for module in {modules}:
    if module not in {brought}:
        sys.modules[module] = None
"""
NOT_THERE = ", ".join(name for name in MODULES if name not in BROUGHT_BY_OTHERS)
INSTALL_EXTRA = f"{INSTALL}; not installed here: {NOT_THERE}"
RUN = "num-server-rounds=2 num-clients=4 fraction-train=0.5 local-epochs=1"


@pytest.mark.ray
@pytest.mark.all
def test_fedif_runs_from_a_wheel_in_an_empty_folder(wheel, tmp_path):
    environment = Environment(tmp_path / "environment", wheel)
    empty = tmp_path / "empty"
    empty.mkdir()
    where = "import fedif_flower; print(fedif_flower.__file__)"
    found = environment.call(empty, "python", "-c", where)
    assert found.stdout.startswith(str(environment.site)), found.stderr
    for study in ("arena", "audit"):
        assert environment.call(empty, "fedif", study, "--help").returncode == 0
    result = environment.call(empty, "fedif", "run", "-c", f'{RUN} strategy="krum"')
    assert result.returncode == 0, result.stdout + result.stderr
    assert "round 2/2" in result.stdout
    # Warnings of this very package are seen, and each once.
    assert result.stderr.count("fedif WARNING: Krum assumes 2f + 2 < m") == 1
    assert "left out" not in result.stderr
    assert "Traceback" not in result.stderr
    [run_dir] = (empty / "runs").iterdir()
    assert (run_dir / "summary.json").exists()


@pytest.fixture(scope="module")
def plain(tmp_path_factory, wheel) -> Environment:
    """What ``pip install .`` makes: the wheel, without the extra ``consortium``."""
    environment = Environment(tmp_path_factory.mktemp("plain") / "environment", wheel)
    environment.add_programs("flwr")
    environment.take_away_the_extra()
    return environment


@pytest.mark.ray
@pytest.mark.all
def test_fedif_run_needs_no_extra_and_says_once_what_is_left_out(plain, tmp_path):
    result = plain.call(tmp_path, "fedif", "run", "-c", RUN)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr.count("fedif INFO: left out: ") == 1
    assert "Traceback" not in result.stderr
    asked = plain.call(tmp_path, "fedif", "run", "-c", f'{RUN} masking.mode="trial"')
    assert asked.returncode == 1
    assert asked.stderr == f"error: masking.mode = 'trial' needs {INSTALL_EXTRA}\n"


@pytest.mark.ray
@pytest.mark.all
def test_flwr_run_needs_no_extra(plain, tmp_path):
    tree = clone(tmp_path / "fedif-flower")
    path = os.pathsep.join([str(plain.scripts), os.environ["PATH"]])
    with open_shell(tmp_path / "home", path) as shell:
        printed = shell.flwr_run(tree, "--run-config", "num-server-rounds=2")
    assert printed.count("fedif INFO: left out: metrics, ") == 1
    assert "fedif INFO: Report: " in printed


@pytest.mark.all
def test_an_app_of_ones_own_needs_no_extra_up_to_its_statement(plain, tmp_path):
    page = (PROJECT / "docs" / "tutorial" / "own-app.md").read_text()
    before_names = page.partition("## What members are called")[0]
    script = tmp_path / "own_app.py"
    script.write_text("\n".join(blocks_of(before_names, "python")))
    result = plain.call(tmp_path, "python", script)
    assert result.returncode == 0, result.stderr
    shown = plain.call(tmp_path, "fedif", "show", "runs/october")
    assert "Ten clients in October, 10 rounds, complete)" in shown.stdout
    stated = plain.call(tmp_path, "fedif", "statement", "runs/october")
    assert stated.returncode == 1
    assert stated.stderr == f"error: this command needs {INSTALL_EXTRA}\n"
