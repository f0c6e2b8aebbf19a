"""A grid through the command line, on real Ray actors."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedif_flower.run.rows import read_rows

PROJECT = Path(__file__).parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.all]

SPEC = """
name = "small"
strategy = ["fedif", "krum"]
num-clients = 8
fraction-train = 0.5
num-server-rounds = 60
local-epochs = 3
attack = "label-noise"
update-clipping = 0.0
"""


def start(tmp_path: Path) -> subprocess.Popen[str]:
    spec = tmp_path / "small.toml"
    spec.write_text(SPEC)
    command = [sys.executable, str(PROJECT / "simulation.py"), "sweep", str(spec)]
    return subprocess.Popen(
        [*command, "--output-dir", str(tmp_path / "out"), "--jobs", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def cells(tmp_path: Path) -> dict[str, Path]:
    return {
        path.name.split("_")[0]: path for path in (tmp_path / "out" / "small").glob("*_seed0-*")
    }


def test_ctrl_c_leaves_a_grid_that_goes_on(tmp_path):
    process = start(tmp_path)
    deadline = time.monotonic() + 240
    while len(found := cells(tmp_path)) < 2 or any(
        len(read_rows(path / "rounds.csv")) < 4 for path in found.values()
    ):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "go on with the same command" in output
    assert not list(tmp_path.glob("out/small/*/summary.json"))

    process = start(tmp_path)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "of client training / " in output
    for name in ("strategy-fedif", "strategy-krum"):
        path = cells(tmp_path)[name]
        assert (path / "summary.json").exists()
        assert [row["round"] for row in read_rows(path / "rounds.csv")] == [
            str(round_) for round_ in range(61)
        ]
    assert "| krum | 1 |" in (tmp_path / "out" / "small" / "table.md").read_text()
