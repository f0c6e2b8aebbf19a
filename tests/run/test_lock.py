from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from client_app import app as client_app
from fedif_flower.errors import StorageError
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.lock import hold_directory
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid

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
