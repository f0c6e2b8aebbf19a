from __future__ import annotations

from dataclasses import replace

import pytest

from fedif_flower.run.figures import summarize
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.report import ReportedRun, member_table, write_report
from fedif_flower.run.rows import ClientRow


def row(partition_id: int, client_id: int, weight_score: float = 0.25) -> ClientRow:
    return ClientRow(
        round=1,
        partition_id=partition_id,
        client_id=client_id,
        malicious=False,
        score=None,
        normalized=None,
        weight_score=weight_score,
        weight=0.5,
        accumulative_influence=None,
        num_examples=10,
        claimed_examples=None,
        train_seconds=0.1,
        train_loss=1.0,
        status="accepted",
        rejection="",
    )


def table(*rows: ClientRow, **options) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the cells of each line."""
    lines = [line for line in member_table(rows, **options) if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[0], cells[2:]


def test_the_largest_contribution_comes_first():
    rows = row(0, 1000), row(1, 1001), row(1, 1001)
    columns, lines = table(*rows, contributed={1000: -0.5, 1001: 1.5})
    shown = [dict(zip(columns, line, strict=True)) for line in lines]
    assert [(s["partition"], s["node"], s["rounds"], s["contributed"]) for s in shown] == [
        ("1", "1001", "2", "1.5000"),
        ("0", "1000", "1", "-0.5000"),
    ]


def test_columns_of_which_nothing_is_known_are_left_out():
    """FedAvg scores nobody."""
    rows = [replace(row(0, 1000), weight_score=None), replace(row(1, 1001), weight_score=None)]
    columns, _ = table(*rows)
    assert "weight score" not in columns
    assert "accumulative influence" not in columns
    assert "core" not in " ".join(member_table(rows))
    columns, _ = table(*rows, replace(row(1, 1001), accumulative_influence=0.5))
    assert {"weight score", "accumulative influence"} <= set(columns)


def test_who_was_away_is_not_refused():
    away = replace(row(1, 1001), status="away", rejection="no reply before the deadline")
    ended = replace(row(2, 1002), status="revoked", rejection="the operator ended its registration")
    refused = replace(row(0, 1000), status="refused", rejection="array 'w' is not finite")
    columns, lines = table(refused, row(1, 1001), away, ended)
    shown = {s["node"]: s for line in lines if (s := dict(zip(columns, line, strict=True)))}
    assert {key: (s["rounds"], s["refused"], s["away"]) for key, s in shown.items()} == {
        "1000": ("1", "1", "0"),
        "1001": ("2", "0", "1"),
        "1002": ("1", "0", "1; revoked"),
    }
    assert "away" not in table(refused)[0]


def test_a_late_reply_is_one_round():
    late = replace(row(1, 1001), status="late", rejection="no reply before the round closed")
    came = replace(row(1, 1001), round=3, asked_in=1)
    columns, (line,) = table(late, came)
    assert line[columns.index("rounds")] == "1"
    assert "away" not in columns or line[columns.index("away")] == "0"


def test_nobody_is_marked_where_nobody_is_malicious():
    assert "marked" not in table(row(0, 1000))[0]
    assert "marked" in table(row(0, 1000), replace(row(1, 1001), malicious=True))[0]


@pytest.mark.parametrize(
    ("remainder", "in_the_table", "in_words"),
    [
        (-0.2013, "3.6003: 3.8016 by members, less 0.2013 by nobody", "0.2013 more than the"),
        (0.25, "3.6003: 3.3503 by members, and 0.2500 by nobody", "0.2500 less than the"),
    ],
)
def test_the_remainder_is_told_in_words(tmp_path, remainder, in_the_table, in_words):
    sums = {"decrease": 3.6003, "attributed": 3.6003 - remainder, "remainder": remainder}
    folder = RunFolder(tmp_path)
    summary = summarize([], [row(0, 1000)]) | {"attribution": sums}
    write_report(folder, ReportedRun("A run", [], [row(0, 1000)], 1), summary)
    text = " ".join(folder.report.read_text().split())
    assert f"| {in_the_table} |" in text
    assert f"add up to {in_words} validation loss fell by. This remainder is nobody's" in text
    assert "malicious" not in text
    assert "AUC" not in text
    assert "accuracy" not in text


def test_without_attribution_the_weight_score_decides_the_order():
    columns, lines = table(row(0, 1000), row(1, 1001, weight_score=0.75))
    assert "contributed" not in columns
    assert [line[columns.index("node")] for line in lines] == ["1001", "1000"]


@pytest.mark.parametrize("partition_id", [-1, 77])
def test_nodes_without_partitions_have_no_column_for_them(partition_id):
    columns, lines = table(row(partition_id, 77))
    assert "partition" not in columns
    assert lines[0][columns.index("node")] == "77"
