"""The study of wrong held-out labels: its cells, its labels, its money."""

from __future__ import annotations

import pytest
import torch

from fedif_studies import held_out


def row(wrong, treatment, shares, **more):
    cell = ("digits", "label-noise", "fedavg", "100", str(wrong), treatment, "0")
    figures = {"accuracy": "0.9", "auc": "", "liars_share": "0.5", "corrected": "0.3"}
    return dict(zip(held_out.KEY, cell, strict=True)) | figures | {"shares": shares} | more


ROWS = [row(0, "as it is", "0.5 0.5 0"), row(0.3, "corrected", "0.25 0.5 0.25")]


def test_money_at_another_member_than_with_right_labels():
    moved = held_out.moved_money(ROWS)
    assert list(moved.values()) == [0.0, 0.25]


def test_the_table_has_a_line_for_each_treatment():
    lines = held_out.table(ROWS).lines
    assert [line[3:6] for line in lines] == [["0%", "as it is", "1"], ["30%", "corrected", "1"]]
    assert lines[1][-3:] == ["50.0", "25.0", "0.30"]


def test_labels_are_wrong_in_the_share_that_is_asked_for():
    labels = torch.arange(100) % 10
    wrong = held_out.with_wrong_labels(labels, 0.3, 10, seed=1)
    assert int((wrong != labels).sum()) == 30
    assert 0 <= int(wrong.min()) <= int(wrong.max()) < 10


def test_sets_that_leave_no_test_examples_are_no_cells():
    cells = list(held_out.cells_of(["digits"], [100, 2000], [0.0, 0.3], 1))
    assert {cell["examples"] for cell in cells} == {100}
    assert len(cells) == 2 * 2 * 2 * 3


@pytest.mark.all
def test_a_cell(monkeypatch):
    monkeypatch.setitem(held_out.OF_DATA, "digits", {"num-server-rounds": 2})
    cell = ("digits", "label-noise", "fedavg", 100, 0.3, "left out", 0)
    (found,) = held_out.measure("", dict(zip(held_out.KEY, cell, strict=True)))
    assert sum(map(float, found["shares"].split())) == pytest.approx(1, abs=1e-3)
