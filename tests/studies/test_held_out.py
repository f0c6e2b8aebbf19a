"""The study of faulty held-out sets: its cells, its labels, its money."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from fedif_studies.held_out import __main__ as held_out
from fedif_studies.held_out import cells, labels, measure
from fedif_studies.held_out.__main__ import CSV
from fedif_studies.held_out.table import moved_money, short_table, table
from fedif_studies.rows import RESULTS, Row


def row(wrong, treatment, shares, **more):
    cell = {
        "data": "digits",
        "attack": "label-noise",
        "strategy": "fedavg",
        "examples": "100",
        "wrong": str(wrong),
        "kind": "symmetric",
        "classes": "whole",
        "treatment": treatment,
        "seed": "0",
    }
    figures = {"accuracy": "0.9", "auc": "", "liars_share": "0.5", "corrected": "0.3"}
    return cell | figures | {"shares": shares} | more


ROWS = [row(0, "as it is", "0.5 0.5 0"), row(0.3, "corrected", "0.25 0.5 0.25")]


def test_money_at_another_member_than_with_right_labels():
    moved = moved_money(ROWS)
    assert list(moved.values()) == [0.0, 0.25]


def test_money_is_compared_with_the_same_rule_and_a_set_that_is_whole():
    without_class = row(0, "as it is", "0 0.5 0.5", classes="missing")
    by_another_rule = row(0.3, "corrected", "0 0 1", strategy="afedsv")
    moved = moved_money([*ROWS, without_class, by_another_rule])
    assert list(moved.values()) == [0.0, 0.25, 0.5]


def test_money_that_nobody_is_paid_is_no_money_that_stayed():
    """Of two seeds one has no positive contribution: it is in no mean, as either of both sets."""
    nobody = "0 0 0"
    of_wrong = [
        *ROWS,
        row(0, "as it is", "1 0 0", seed="1"),
        row(0.3, "corrected", nobody, seed="1"),
    ]
    of_right = [
        *ROWS,
        row(0, "as it is", nobody, seed="1"),
        row(0.3, "corrected", "1 0 0", seed="1"),
    ]
    for rows in (of_wrong, of_right):
        assert table(rows).lines[1][-2] == "25.0 (1 of 2)"


def test_shares_are_of_what_is_positive_and_there_are_none_of_nothing():
    assert measure.money_of([1.0, 0.0, 3.0], [False, True, True]) == {
        "liars_share": "0.75",
        "shares": "0.25 0 0.75",
    }
    nothing = measure.money_of([0.0, 0.0], [False, True])
    assert nothing == {"liars_share": "", "shares": ""}


def test_the_table_has_a_line_for_each_treatment():
    lines = table(ROWS).lines
    assert [[line[4], *line[7:9]] for line in lines] == [
        ["0%", "as it is", "1"],
        ["30%", "corrected", "1"],
    ]
    assert lines[1][-3:] == ["50.0", "25.0", "0.30"]


def test_a_mean_of_fewer_runs_than_its_line_has_says_so():
    """Seed 1 paid nobody: of two runs one has shares."""
    seeds = [
        *ROWS,
        row(0, "as it is", "", seed="1", auc="0.5"),
        row(0.3, "corrected", "", seed="1", liars_share=""),
    ]
    _, corrected = table(seeds).lines
    assert corrected[8:] == ["2", "90.0", "-", "50.0 (1 of 2)", "25.0 (1 of 2)", "0.30"]
    _, wrong = short_table([*seeds, row(0.3, "as it is", "1 0 0", liars_share="1")], "digits").lines
    assert wrong[4] == "100 → 50 (1 of 2)"


def test_labels_are_wrong_in_the_share_that_is_asked_for():
    right = torch.arange(100) % 10
    wrong = labels.with_wrong_labels(right, 0.3, 10, seed=1)
    assert int((wrong != right).sum()) == 30
    assert 0 <= int(wrong.min()) <= int(wrong.max()) < 10


def test_confused_labels_become_their_partner_alone():
    others = labels.mistaken_for("digits")
    assert others.tolist() == [2, 7, 0, 8, 9, 6, 5, 1, 3, 4]
    right = torch.arange(100) % 10
    wrong = labels.with_wrong_labels(right, 0.3, 10, seed=1, others=others)
    is_moved = wrong != right
    assert int(is_moved.sum()) == 30
    assert torch.equal(wrong[is_moved], others[right[is_moved]])


def test_chances_by_which_labels_are_replaced():
    chances = labels.true_transitions(0.3, 10, labels.mistaken_for("digits"))
    assert chances[1].tolist() == pytest.approx([0, 0.7, 0, 0, 0, 0, 0, 0.3, 0, 0])
    assert labels.true_transitions(0.09, 10)[0, 1] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("classes", "left"), [("whole", 3), ("half", 1), ("single", 1), ("missing", 0)]
)
def test_examples_of_a_class_are_left_out(classes, left):
    given = torch.tensor([6, 1, 6, 2, 6])
    kept = given[labels.kept_of_class(given, classes)]
    assert kept.tolist().count(6) == left
    assert kept[kept != 6].tolist() == [1, 2]


def test_who_attacks_a_class_calls_it_another():
    given = torch.tensor([6, 0, 5])
    poisoned = labels.SixAsZero().poison_labels(given, 10, torch.Generator())
    assert poisoned.tolist() == [0, 0, 5]
    assert given.tolist() == [6, 0, 5]


def test_sets_that_leave_no_test_examples_are_refused_or_left_out_with_a_line(monkeypatch, capsys):
    planned: list[Row] = []

    def fill(_path: Path, rows: list[Row], *_: Any, **__: Any) -> bool:
        planned.extend(rows)
        return True

    monkeypatch.setattr(held_out, "fill", fill)
    held_out.main(seeds=1, wrong="0,0.3")
    assert {cell["examples"] for cell in planned} == {20, 100, 500}
    assert len(planned) == 3 * 2 * 2 * 2 * 3
    assert capsys.readouterr().out.startswith(
        "digits: sizes 2000 are left out; allowed: 1 to 500\n"
    )
    with pytest.raises(ConfigError, match="sizes = 2000; allowed: 1 to 500 of digits"):
        held_out.main(sizes="100,2000")


def test_right_labels_are_confused_with_none():
    confused = list(cells.cells_of("confused", {"digits": [100]}, [0.0, 0.3], 1))
    assert {cell["wrong"] for cell in confused} == {0.3}
    assert len(confused) == 2 * 2 * 4


@pytest.mark.all
@pytest.mark.parametrize("line", cells.LINES)
def test_a_cell_of_each_line(monkeypatch, line):
    monkeypatch.setitem(measure.OF_DATA, "digits", {"num-server-rounds": 2})
    size = 400 if line in ("by-class", "hard") else 100  # Each class has to have 20 labels.
    last = list(cells.cells_of(line, {"digits": [size]}, [0.3], 1))[-1]
    (figures,) = measure.measure("", last)
    assert 0 < float(figures["accuracy"]) < 1
    if last["strategy"] != "fedif":
        assert sum(map(float, figures["shares"].split())) == pytest.approx(1, abs=1e-3)


@pytest.mark.all
def test_a_cell_without_suspects(monkeypatch):
    monkeypatch.setitem(measure.OF_DATA, "digits", {"num-server-rounds": 2})
    (cell,) = (
        cell
        for cell in cells.cells_of("core", {"digits": [100]}, [0.3], 1)
        if (cell["attack"], cell["strategy"]) == ("label-noise", "fedavg")
        and cell["treatment"] == "left out"
    )
    (figures,) = measure.measure("", cell)
    assert float(figures["liars_share"]) <= 1


def test_the_page_has_the_tables_that_follow_from_the_rows():
    page = (RESULTS.parent / "held-out-data.md").read_text()
    rows = read_rows(CSV)
    for data in ("fashion-mnist", "digits"):
        lines = short_table(rows, data).to_markdown()
        assert len(lines) == 2 + 4 * (4 if data == "fashion-mnist" else 3)
        assert "\n".join(lines) in page


def test_the_short_table_has_figures_before_and_after_the_correction():
    rows = [
        row(0.3, "as it is", "0.5 0.5 0", liars_share="0.5"),
        row(0.3, "corrected", "0.25 0.75 0", liars_share="0.25"),
        row(0, "as it is", "0 1 0", liars_share="0"),
        row(0, "corrected", "0 1 0", liars_share="0"),
    ]
    lines = short_table(rows, "digits").lines
    assert [line[:2] for line in lines] == [["100", "0%"], ["100", "30%"]]
    assert [line[4] for line in lines] == ["0", "50 → 25"]


def mean_of(column: str, **where: str) -> float:
    """The mean of a column over the rows of Fashion-MNIST with these values, core as the rest."""
    usual = {
        "data": "fashion-mnist",
        "examples": "500",
        "kind": "symmetric",
        "classes": "whole",
        "wrong": "0.0",
    }
    rows = read_rows(CSV)
    moved = moved_money(rows)
    values = []
    for one in rows:
        if all(one[name] == value for name, value in (usual | where).items()):
            cell = tuple(one[name] for name in cells.KEY)
            values.append(moved[cell] if column == "moved" else float(one[column]))
    assert values
    return sum(values) / len(values)


def test_the_page_says_what_the_rows_say_beside_its_tables():
    page = " ".join((RESULTS.parent / "held-out-data.md").read_text().split())
    confused = {"kind": "confused", "wrong": "0.3"}
    attacked = {"attack": "label-noise", "strategy": "fedif", **confused}
    honest = {"attack": "none", "strategy": "fedavg"}
    before, after = {"treatment": "as it is"}, {"treatment": "by class"}
    hard = {"data": "cifar10", "examples": "2000", "attack": "label-noise"}
    wrong = {**hard, "wrong": "0.3"}
    corrected = {"treatment": "corrected"}
    targeted = {"attack": "six-as-zero", **before}
    paid = {"strategy": "fedavg", **targeted}
    scored = {"strategy": "fedif", **targeted}
    cost = mean_of("accuracy", **hard, **before) - mean_of("accuracy", **hard, **after)
    for words in (
        f"accuracy was {100 * mean_of('accuracy', **attacked, **before):.1f} and its AUC "
        f"{mean_of('auc', **attacked, **before):.2f}, and "
        f"{100 * mean_of('moved', **honest, **confused, **before):.0f} % of the money",
        f"{100 * mean_of('accuracy', **attacked, **after):.1f}, "
        f"{mean_of('auc', **attacked, **after):.2f} and "
        f"{100 * mean_of('moved', **honest, **confused, **after):.0f} %.",
        f"{100 * mean_of('by_class', **hard, **after):.0f} % were said to be confusable",
        f"cost {100 * cost:.1f} points",
        f"it moved {100 * mean_of('moved', **honest, **after):.0f} % of the money",
        f"{100 * mean_of('moved', **honest, **before, classes='half'):.0f} % of the money moved",
        f"{100 * mean_of('moved', **honest, **before, classes='missing'):.0f} %. FedIF",
        f"AUC rose from {mean_of('auc', **wrong, **before):.2f} to "
        f"{mean_of('auc', **wrong, **corrected):.2f} and the accuracy from "
        f"{100 * mean_of('accuracy', **wrong, **before):.1f} to "
        f"{100 * mean_of('accuracy', **wrong, **corrected):.1f} (right labels: "
        f"{100 * mean_of('accuracy', **hard, **before):.1f})",
        f"paid {100 * mean_of('liars_share', **paid, classes='missing'):.0f} % instead of "
        f"{100 * mean_of('liars_share', **paid):.0f} %, and FedIF's AUC was "
        f"{mean_of('auc', **scored, classes='missing'):.2f} instead of "
        f"{mean_of('auc', **scored):.2f}",
    ):
        assert words in page, words


def test_what_to_do_says_how_much_money_moves_and_what_liars_get():
    page = " ".join((RESULTS.parent / "held-out-data.md").read_text().split())
    sizes = {"fashion-mnist": ("100", "500", "2000"), "digits": ("100", "500")}
    honest = {"attack": "none", "strategy": "fedavg", "treatment": "corrected"}

    def moved(wrong: str, least: int) -> str:
        percents = [
            100 * mean_of("moved", data=data, examples=size, wrong=wrong, **honest)
            for data, sizes_of_data in sizes.items()
            for size in sizes_of_data
            if int(size) >= least
        ]
        return f"{min(percents):.0f} to {max(percents):.0f} % moved"

    assert f"| yes: {moved('0.1', 100)} |" in page
    assert f"have 500 examples or more: {moved('0.3', 500)} |" in page
    lying = {"attack": "label-noise", "strategy": "fedavg", "treatment": "as it is"}
    wrong = {"wrong": "0.3", **lying}
    few = [mean_of("liars_share", data=data, examples="20", **wrong) for data in sizes]
    assert 0.5 < min(few) < max(few) < 0.67  # "half to two thirds"
    readme = " ".join((RESULTS.parent.parent / "README.md").read_text().split())
    paid = 100 * mean_of("liars_share", examples="500", **wrong)
    assert mean_of("liars_share", examples="500", **(wrong | {"treatment": "corrected"})) == 0
    words = f"with 30 % wrong of 500 labels, three liars were paid nothing instead of {paid:.0f} %"
    assert words in readme


def test_of_right_labels_no_model_that_was_not_ruined_contradicts_more_than_the_page_says():
    shares = []
    for one in read_rows(CSV):
        is_ruined = (one["attack"], one["strategy"]) == ("poisoned-fl", "fedavg")
        if float(one["wrong"]) == 0 and not is_ruined:
            shares.append(float(one["contradicted"]))
    page = (RESULTS.parent / "held-out-data.md").read_text()
    assert f"that share was {100 * max(shares):.0f} % at most" in page


@pytest.mark.parametrize("classes", ["whole", "single", "missing"])
def test_a_targeted_attack_gains_nothing_by_the_correction(classes):
    """Beside a set with right labels: what it gains there is the missing class's."""
    attack = {"attack": "six-as-zero", "classes": classes}
    right = {"treatment": "as it is", **attack}
    corrected = {"treatment": "corrected", "wrong": "0.3", **attack}
    auc = [mean_of("auc", strategy="fedif", **one) for one in (right, corrected)]
    assert auc[1] >= auc[0] - 0.02
    paid = [mean_of("liars_share", strategy="fedavg", **one) for one in (right, corrected)]
    assert paid[1] <= paid[0] + 0.05
