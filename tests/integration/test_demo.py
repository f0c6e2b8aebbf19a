"""``make deploy-demo`` as a user runs it: it reports, succeeds, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedif_flower.runtime.processes import MarkedProcesses
from tests.integration.deployed import REPOSITORY, marks, search_path

pytestmark = [*marks, pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")]


def test_the_demo_reports_and_cleans_up(tmp_path: Path) -> None:
    folders = {"TMPDIR": str(tmp_path), "OUTPUT": str(tmp_path / "runs")}
    own = {**folders, "PATH": search_path(), "ROUNDS": "1"}
    marked = MarkedProcesses({**os.environ, **own}, variable="FEDIF_TEST_ID")
    command = ["bash", str(REPOSITORY / "deploy" / "demo.sh")]
    ended = subprocess.run(command, env=marked.environment, capture_output=True, text=True)
    left = marked.alive()
    marked.terminate()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 / 0 / 0" in ended.stdout
    assert "malicious" in ended.stdout.partition("## Members")[2]
    assert "| hospital-2 | 2 |" in ended.stdout
    assert f"Unchanged: {tmp_path / 'runs' / 'deploy-demo'}" in ended.stdout
    assert ended.stdout.count("/statement.html") == 4
    assert left == []
    assert list(tmp_path.glob("fedif-demo.*")) == []
