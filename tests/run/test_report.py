from __future__ import annotations

from dataclasses import replace

import pytest

from fedif_flower.run.report import member_table
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


def test_without_attribution_the_weight_score_decides_the_order():
    columns, lines = table(row(0, 1000), row(1, 1001, weight_score=0.75))
    assert "contributed" not in columns
    assert [line[columns.index("node")] for line in lines] == ["1001", "1000"]


@pytest.mark.parametrize("partition_id", [-1, 77])
def test_nodes_without_partitions_have_no_column_for_them(partition_id):
    columns, lines = table(row(partition_id, 77))
    assert "partition" not in columns
    assert lines[0][columns.index("node")] == "77"
