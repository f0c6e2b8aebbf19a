"""The library works where the two other packages are not installed."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in ("fedif_consortium", "fedif_studies"):
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


sys.meta_path.insert(0, Blocked())
from typer.testing import CliRunner

from client_app import app as client
from fedif_flower.cli import cli
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
import server_app

assert CliRunner().invoke(cli, ["--help"]).exit_code == 0
settings = {"dataset": "digits", "num-clients": 3, "num-server-rounds": 1, "fraction-train": 1.0}
config = RunConfig.from_run_config({**settings, "output-dir": sys.argv[1]})
assert (run_federation(LocalGrid(client, 3), config) / "summary.json").is_file()
try:
    RunConfig.from_run_config({**settings, "masking.mode": "off", "masking.keeper": "x"})
except Exception as error:
    print(error)
"""


def test_the_library_runs_where_the_others_are_not_there(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "masking.keeper = 'x': this app has no part with a section [masking]" in done.stdout
