from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from client_app import app as client_app
from fedif_flower.errors import StorageError
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.lock import hold_directory
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.flwr_run import execute, prepare
from fedif_flower.runtime.local_grid import LocalGrid
from tests.sweeps.small import silent_console

PROJECT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from fedif_flower.run.lock import hold_directory
with hold_directory(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_holder_is_named_and_a_killed_one_lets_go(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        named = rf"in use by process {holder.pid} on {socket.gethostname()} since 20\d\d-"
        with pytest.raises(StorageError, match=named), hold_directory(tmp_path / "run"):
            pass
        holder.kill()
    with hold_directory(tmp_path / "run"):
        pass


def test_different_purposes_do_not_exclude_each_other(tmp_path):
    with hold_directory(tmp_path), hold_directory(tmp_path, "launch"):
        pass


def test_a_second_run_in_the_same_directory_is_refused_and_the_first_goes_on(tmp_path):
    settings = {"num-clients": 4, "fraction-train": 0.5, "num-server-rounds": 2, "local-epochs": 1}
    own = {"output-dir": str(tmp_path), "run-name": "run", "device": "cpu"}
    config = RunConfig.from_run_config(default_run_config() | settings | own)
    refused: list[str] = []

    def begin_another(row) -> None:
        with pytest.raises(StorageError) as error:
            run_federation(LocalGrid(client_app, 4), config)
        refused.append(str(error.value))

    run_federation(LocalGrid(client_app, 4), config, begin_another)
    assert len(refused) == 3
    assert f"in use by process {os.getpid()}" in refused[0]
    assert [row["round"] for row in read_rows(tmp_path / "run" / "rounds.csv")] == ["0", "1", "2"]


def test_a_launcher_leaves_the_log_of_a_run_that_goes_on(tmp_path):
    launch = prepare({"output-dir": str(tmp_path), "run-name": "run"})
    launch.run_dir.mkdir()
    launch.log_path.write_text("the first run's")
    for name in ("run", "launch"):
        with hold_directory(launch.run_dir, name), pytest.raises(StorageError, match="in use"):
            execute(launch, silent_console())
    assert launch.log_path.read_text() == "the first run's"
