from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from fedif_consortium.member.node_log import PRIVACY, NodeLog
from fedif_studies.commands import cli

APP, DIGEST = "9f86d081884c" + "0" * 52, "ab12" * 16
REFUSED = {"decision": "refused", "reason": "an array is not `the` model's"}


@pytest.fixture
def folder(tmp_path):
    """Run 17 with three rounds, of which the last was refused, and run 18 on the next day."""
    time = datetime(2026, 11, 22, 23, 0, 0, tzinfo=UTC)

    def now():
        nonlocal time
        time += timedelta(minutes=10)
        return time

    with NodeLog(tmp_path, now=now) as log:

        def add(direction, run, size, **other):
            line = {"kind": "train", "app": APP, "digest": DIGEST, "decision": "passed"}
            log.append(**(line | {"direction": direction, "run_id": run, "bytes": size} | other))

        add("in", 17, 100)
        add("out", 17, 0, kind=PRIVACY, epsilon=0.51, delta=1e-5, replies=4)
        add("out", 17, 1234)
        add("out", 17, 1000, kind="query")
        add("in", 17, 100)
        add("out", 17, 0, **REFUSED)  # The sixth, at midnight.
        add("in", 18, 100, app="", **REFUSED)
        return tmp_path


def shown(*arguments) -> tuple[list[dict], list[str]]:
    """Return the messages, and what is said of the log."""
    found = CliRunner().invoke(cli, ["node", "log", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0
    return [json.loads(line) for line in found.stdout.splitlines()], found.stderr.splitlines()


def test_a_log_is_shown_line_by_line(folder):
    lines, (whole,) = shown(folder)
    assert [line["run"] for line in lines] == [17] * 6 + [18]
    assert [line["epsilon"] for line in lines if line["kind"] == PRIVACY] == [0.51]
    assert whole.startswith("Whole: 7 lines, the last hash is ")
