from __future__ import annotations

import json

from typer.testing import CliRunner

from fedif_consortium.member.node_log import NodeLog
from fedif_studies.commands import cli


def test_a_log_is_shown_line_by_line(tmp_path):
    with NodeLog(tmp_path) as log:
        for run_id in (17, 18):
            log.append(
                direction="in",
                run=run_id,
                kind="train",
                app="9f" * 32,
                digest="ab" * 32,
                decision="passed",
                bytes=100,
            )
    found = CliRunner().invoke(cli, ["node", "log", str(tmp_path)], catch_exceptions=False)
    assert found.exit_code == 0
    assert [json.loads(line)["run"] for line in found.stdout.splitlines()] == [17, 18]
    assert found.stderr.startswith("Whole: 2 lines, the last hash is ")
