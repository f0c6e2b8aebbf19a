"""``flwr run`` end to end by the launcher: its exit status, its words, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedif_flower.runtime.processes import MarkedProcesses
from tests.integration.damage import damage_partitions

pytestmark = [pytest.mark.ray, pytest.mark.all]
REPOSITORY = Path(__file__).parents[2]
ONE_ROUND = "num-clients=4 fraction-train=0.5 local-epochs=1 num-server-rounds=1"
SMALL = ONE_ROUND.replace("rounds=1", "rounds=2")


class Launch:
    """The launcher as a process of its own.

    It marks what it starts; this adds a mark of its own, under another name, to look for survivors.
    """

    def __init__(self, directory: Path) -> None:
        self.run_dir = directory / "runs" / "test"
        self._printed = directory / "printed"
        self.cache = directory / "cache"
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache)}
        self.marked = MarkedProcesses(environment, variable="FEDIF_TEST_ID")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._printed.open("wb") as output:
            return self.marked.start(
                [
                    *(sys.executable, "-m", "fedif_flower.runtime.flwr_run", *arguments),
                    *("--output-dir", str(self.run_dir.parent), "--run-name", self.run_dir.name),
                ],
                cwd=REPOSITORY,
                output=output,
            )

    def printed(self) -> str:
        return self._printed.read_text()

    def log(self) -> str:
        path = self.run_dir / "flwr.log"
        return path.read_text(errors="replace") if path.exists() else ""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    launched = Launch(tmp_path)
    yield launched
    assert launched.marked.terminate(grace=0.0) == []


def test_completed_run(launch: Launch) -> None:
    damage_partitions(launch.cache, 4)
    assert launch.start("-c", f'{SMALL} strategy="krum"').wait() == 0, launch.printed()
    assert json.loads((launch.run_dir / "summary.json").read_text())["rounds"] == 2
    assert "round 2/2" in launch.printed()
    assert str(launch.run_dir) in launch.printed().splitlines()[-1]
    assert launch.printed().count("fedif WARNING: Krum assumes 2f + 2 < m") == 1
    assert launch.printed().count("drawing the partitions again") == 1  # in a client
    assert "round 2" in launch.log()
    assert launch.marked.alive() == []


def test_run_that_fails_in_the_server_app(launch: Launch) -> None:
    # Only the ServerApp reads data: it finds that there are fewer examples than clients.
    process = launch.start("-c", "num-clients=2000 num-server-rounds=1")
    assert process.wait() == 1, launch.printed()
    last = launch.printed().splitlines()[-1]
    assert last.startswith("error: ConfigError: num-clients = 2000")
    assert str(launch.run_dir / "flwr.log") in last
    assert "Traceback" not in launch.printed()
    assert "Traceback" in launch.log()
    assert launch.marked.alive() == []


def test_a_run_whose_last_round_failed_is_reported_and_counts_as_failed(launch: Launch) -> None:
    process = launch.start("-c", f"{ONE_ROUND} learning-rate=1e38")
    assert process.wait() == 1, launch.printed()
    assert "fedif WARNING: round 1: 0 valid replies, 1 needed" in launch.printed()
    assert "1, the last among them" in launch.printed()
    assert "error: TrainingFailedError: the last round failed" in launch.printed()
    assert launch.marked.alive() == []
