from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from fedif_flower.cli import cli
from fedif_flower.errors import EvidenceError
from fedif_flower.member.node_log import PRIVACY, NodeLog

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


def shown(*arguments) -> list[str]:
    found = CliRunner().invoke(cli, ["node", "log", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout.splitlines()


def test_a_log_is_shown_line_by_line(folder):
    header, *lines, empty, whole = shown(folder)
    assert header.split() == [
        *("time", "direction", "run", "app", "kind", "bytes", "digest", "decision", "reason")
    ]
    assert [line.split()[:4] for line in lines[:1]] == [
        ["2026-11-22T23:10:00+00:00", "in", "17", "9f86d081884c"]
    ]
    assert "epsilon 0.51 at delta 1e-05 after 4 replies" in lines[1]
    assert len(lines) == 7
    assert empty == ""
    assert whole.startswith("Whole: 7 lines, the last hash is ")


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--run", 18], 1),
        (["--day", "2026-11-22"], 5),
        (["--day", "2026-11"], 7),
        (["--decision", "refused"], 2),
        (["--decision", "refused", "--run", 17], 1),
    ],
)
def test_lines_are_chosen(folder, options, count):
    assert len(shown(folder, *options)) == count + 3


def test_a_summary_tells_each_day(folder):
    text = "\n".join(shown(folder, "--summary"))
    first, second = text.split("\n## ")[1:]
    assert first.startswith("2026-11-22\n")
    assert "\n| 17 | " + APP + " | 1 | 2 | 2 | 2,234 | 0 |\n" in first
    assert "Nothing was refused." in first
    assert (
        "1 replies left with noise; all 4 so far are worth epsilon = 0.51 at delta = 1e-05" in first
    )
    assert second.startswith("2026-11-23\n")
    assert "\n| 18 |  | 0 | 1 | 0 | 0 | 1 |\n" in second
    assert "- 1 on the way out: `an array is not 'the' model's`\n" in second
    assert "- 1 on the way in: `an array is not 'the' model's`\n" in second
    assert "Privacy" not in second


def test_a_hash_that_was_written_down_is_compared(folder):
    head = shown(folder)[-1].split()[-1]
    assert shown(folder, "--head", head)[-1] == "The log goes on from that hash: 0 lines since."
    path = folder / "log-000001.txt"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(EvidenceError, match="no line has the hash"):
        shown(folder, "--head", head)
    path.write_text("".join([lines[0], *lines[2:]]))
    with pytest.raises(EvidenceError, match="line 2 of"):
        shown(folder, "--summary")
