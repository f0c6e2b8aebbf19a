from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from fedif_flower.errors import StorageError
from fedif_flower.run.folder import hold_directory

HOLD = """
import sys, time
from pathlib import Path
from fedif_flower.run.folder import hold_directory
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
