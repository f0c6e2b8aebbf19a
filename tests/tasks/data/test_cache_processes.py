"""The prepared cache between processes: started together, killed, or out of disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# They share what one process found out.
pytestmark = [pytest.mark.xdist_group("cache processes"), pytest.mark.all]

REPOSITORY = Path(__file__).parents[3]
# Three scenarios, each a print of a JSON line, in one fresh process that forks.
PROCESSES = """
import json, os, resource, signal, sys, time
from pathlib import Path
import numpy as np
from fedif_flower.tasks.data.cache import open_prepared
from fedif_flower.tasks.data.sources import RawDataset, RawSplit, Source
from fedif_flower.errors import DataError

class Slow(Source):
    def identity(self):
        return {"version": 0}

    def read(self):
        with open(self.cache_root / "reads", "a") as file:
            file.write("x")
        images = np.arange(12, dtype=np.uint8).reshape(3, 2, 1, 2)
        def blocks():
            yield images[:2]
            if self.data_dir == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.2)
            yield images[2:]
        train = RawSplit(np.array([0, 1, 1]), blocks)
        return RawDataset(("a", "b"), (2, 1, 2), 255, train, train)

def load(root, data_dir=""):
    prepared = open_prepared("tiny", Slow(data_dir, root), root)
    return int(prepared.train.images.sum())

def fork(function):
    child = os.fork()
    if child == 0:
        os._exit(function())
    return child

def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def folders(root):
    return [path.name for path in root.iterdir() if path.is_dir()]

roots = [Path(sys.argv[1]) / name for name in ("together", "killed", "refused")]
for root in roots:
    root.mkdir()
together, killed, refused = roots

children = [fork(lambda: load(together)) for _ in range(4)]
print(json.dumps([[status(child) for child in children], (together / "reads").read_text()]))

exit_code = status(fork(lambda: load(killed, "kill")))
print(json.dumps([exit_code, folders(killed), load(killed), folders(killed)]))

# A limit on the size of files stands in for a full disk: writes fail in the same way.
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    load(refused)
except DataError as error:
    print(json.dumps([str(error), folders(refused)]))
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES, str(tmp_path_factory.mktemp("processes"))],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_processes_that_start_together_prepare_once(processes: list[Any]) -> None:
    assert processes[0] == [[66] * 4, "x"]  # 66 = 0 + 1 + ... + 11


def test_killed_while_preparing_leaves_no_entry_and_is_cleaned_up(processes: list[Any]) -> None:
    exit_code, left, pixels, then = processes[1]
    assert exit_code == -9
    assert len(left) == 1
    assert left[0].startswith(".tiny-")
    assert pixels == 66
    assert len(then) == 1
    assert then[0].startswith("tiny-")


def test_write_that_the_system_refuses_is_a_data_error(processes: list[Any]) -> None:
    message, left = processes[2]
    assert re.search(r"cannot use the data cache in .*/refused: .*too large", message)
    assert left == []
