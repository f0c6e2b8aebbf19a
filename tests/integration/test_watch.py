from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.watch import if_killed

REPOSITORY = Path(__file__).parents[2]
KILLED = """
import os, signal, subprocess, sys
from tests.integration.watch import if_killed, kill_marked
with if_killed(kill_marked(sys.argv[1])):
    name, _, value = sys.argv[1].partition("=")
    subprocess.Popen(["sleep", "600"], env={**os.environ, name: value})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_what_a_killed_process_left_is_ended():
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, f"FEDIF_TEST_ID=watch-{os.getpid()}"],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    )
    # The child holds this pipe open for ten minutes, unless it is ended.
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_nothing_is_done_when_the_block_ends(tmp_path):
    with if_killed(f"touch {tmp_path}/killed"):
        pass
    with pytest.raises(ValueError, match="own"), if_killed(f"touch {tmp_path}/killed"):
        raise ValueError("own")
    assert list(tmp_path.iterdir()) == []
