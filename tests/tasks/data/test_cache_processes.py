"""The prepared cache between processes: started together, killed, or out of disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
# Three scenarios, each a print of a JSON line, in one fresh process that forks.
PROCESSES = """
import json, os, resource, signal, sys, time
from pathlib import Path
import numpy as np
from fedif_flower.tasks.data.cache import open_prepared
from fedif_flower.tasks.data.cache import RawDataset, RawSplit, Source
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


@pytest.mark.all
def test_processes_that_share_a_cache_die_or_run_out_of_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    together, killed, (message, left) = map(json.loads, done.stdout.splitlines())
    assert together == [[66] * 4, "x"]  # 66 = 0 + 1 + ... + 11; it was read once.
    exit_code, (torn,), pixels, (whole,) = killed
    assert (exit_code, pixels) == (-9, 66)
    assert torn.startswith(".tiny-")
    assert whole.startswith("tiny-")
    assert re.search(r"cannot use the data cache in .*/refused: .*too large", message)
    assert left == []
