"""``make deploy-demo`` as a user runs it: it reports, succeeds, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedif_flower.run.rows import read_rows
from tests.integration.deployed import REPOSITORY, marks, search_path
from tests.integration.watch import MarkedProcesses

pytestmark = [
    *marks,
    pytest.mark.all,
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]


def test_the_demo_reports_and_cleans_up(tmp_path: Path) -> None:
    folders = {"TMPDIR": str(tmp_path), "OUTPUT": str(tmp_path / "runs")}
    own = {**folders, "PATH": search_path()}
    marked = MarkedProcesses({**os.environ, **own})
    command = ["bash", str(REPOSITORY / "deploy" / "demo.sh")]
    ended = subprocess.run(command, env=marked.environment, capture_output=True, text=True)
    left = marked.alive()
    marked.terminate()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Complete with gaps: " in ended.stdout
    assert "-- hospital-1 is late" in ended.stdout
    assert "-- a late reply counts; now hospital-0 goes away" in ended.stdout
    _, _, page = ended.stdout.partition("## Members")
    members, _, complete = page.partition("## Completeness")
    assert "malicious" in members
    rows = {row.split(" | ")[0]: row.split(" | ") for row in complete.splitlines() if "|" in row}
    header = rows["| member"]
    # Of who lacks nothing the table has no line.
    assert not rows.keys() & {"| hospital-2", "| hospital-3"}
    away = dict(zip(header, rows["| hospital-0"], strict=True))
    assert int(away["missing"]) + int(away["offline"]) >= 1
    clients = read_rows(tmp_path / "runs" / "deploy-demo" / "clients.csv")
    late = [row for row in clients if row["asked_in"] and int(row["asked_in"]) < int(row["round"])]
    assert "1" in {row["partition_id"] for row in late}
    assert "| hospital-2 |" in members
    assert f"Unchanged: {tmp_path / 'runs' / 'deploy-demo'}" in ended.stdout
    refused = "this member has not approved app "
    assert refused in ended.stdout.partition("-- hospital-1 is late")[0]
    for name in ("the operator", "hospital-1", "hospital-2"):
        assert re.search(rf"^Signed by: [0-9a-f ]{{39}}, {name}$", ended.stdout, re.MULTILINE), name
    assert re.search(r"^Signed by hospital-2: (\d+) of \1 updates$", ended.stdout, re.MULTILINE)
    assert re.search(
        r"^Agrees with the receipts of hospital-1: \d+ lines, \d+ heads$",
        ended.stdout,
        re.MULTILINE,
    )
    _, _, checked = ended.stdout.partition("== openssl ")
    assert re.findall("Verified", checked) == ["Verified"] * 3
    assert left == []
    assert list(tmp_path.glob("fedif-demo.*")) == []
