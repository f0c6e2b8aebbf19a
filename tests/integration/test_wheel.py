"""The package as others get it: a wheel, in an environment and a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

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


@pytest.mark.ray
@pytest.mark.all
def test_fedif_runs_from_a_wheel_in_an_empty_folder(wheel, tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    pip = [sys.executable, "-m", "pip", "--python", python, "install"]
    # pip looks beside itself too, and may take the checkout's installation for one in there.
    options = ["--quiet", "--ignore-installed", "--no-deps", "--no-index"]
    subprocess.run([*pip, *options, wheel], check=True, cwd=tmp_path)
    site = next((environment / "lib").glob("python3*")) / "site-packages"
    # The dependencies of this environment, but not its checkout of the package.
    (site / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    where = [python, "-c", "import fedif_flower; print(fedif_flower.__file__)"]
    found = subprocess.run(where, cwd=empty, env=own, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(site))
    fedif = environment / "bin" / "fedif"
    for study in ("arena", "audit"):
        subprocess.run([fedif, study, "--help"], cwd=empty, env=own, check=True)
    settings = "num-server-rounds=2 num-clients=4 fraction-train=0.5 local-epochs=1"
    result = subprocess.run(
        [fedif, "run", "-c", f'{settings} strategy="krum"'],
        cwd=empty,
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "round 2/2" in result.stdout
    # Warnings of this very package are seen, and each once.
    assert result.stderr.count("fedif WARNING: Krum assumes 2f + 2 < m") == 1
    assert "Traceback" not in result.stderr
    [run_dir] = (empty / "runs").iterdir()
    assert (run_dir / "summary.json").exists()
