"""Removal curves: looked up by hand, and drawn."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

from fedif_studies.audit.cases import HONEST
from fedif_studies.audit.lines import values_of
from fedif_studies.audit.removal import (
    RETRAINED_VALUES,
    case_curves,
    random_curve,
    removal_curves,
)
from fedif_studies.audit.removal_picture import LOOKS, RemovalPanel, removal_picture
from fedif_studies.pictures.panels import SHEETS

# Three members; a coalition's accuracy is its number over ten: members bring .1, .2 and .4.
ACCURACY = torch.arange(8, dtype=torch.float64) / 10
OMEGA = "FedIF Omega"


def test_curves_are_looked_up_in_the_coalitions_that_stay():
    curves = removal_curves(torch.tensor([10.0, 20.0, 40.0]), ACCURACY)
    assert curves.lowest_first.tolist() == pytest.approx([0.7, 0.6, 0.4])
    assert curves.highest_first.tolist() == pytest.approx([0.7, 0.3, 0.1])
    assert curves.area == pytest.approx((0.3 + 0.3) / 2)
    # Who has the right values backwards loses as much.
    backwards = removal_curves(torch.tensor([3.0, 2.0, 1.0]), ACCURACY)
    assert backwards.area == pytest.approx(-curves.area)


def test_a_random_order_is_the_mean_over_all_coalitions_of_a_size():
    pairs, singles = (0.3 + 0.5 + 0.6) / 3, (0.1 + 0.2 + 0.4) / 3
    assert random_curve(ACCURACY).tolist() == pytest.approx([0.7, pairs, singles])


def coalitions(case, seeds=(0, 1)):
    place = {"case": case}
    return [
        {**place, "seed": str(seed), "test_loss": str(1 - c / 10), "test_accuracy": str(c / 10)}
        for seed in seeds
        for c in range(8)
    ]


def member_lines(values, case, seed):
    place = {"case": case, "rule": "FedAvg", "seed": str(seed), "valuation": OMEGA}
    return [{**place, "marked": "0", "value": str(value)} for value in values]


def test_curves_of_a_case_are_means_over_federations_of_the_same_members():
    for case, used in ((HONEST, 2), ("label noise", 1)):
        lines = [*member_lines([1, 2, 3], case, 0), *member_lines([3, 2, 1], case, 1)]
        found = case_curves(values_of(lines), coalitions(case), case, [OMEGA, "not measured"])
        assert found is not None
        assert list(found.by_name) == [RETRAINED_VALUES, OMEGA]
        assert found.seeds == 2
        assert found.by_name[RETRAINED_VALUES].area == pytest.approx(0.3)
        # With other seeds other members may be marked: those are not the coalitions' members.
        expected = 0.0 if used == 2 else 0.3
        assert found.by_name[OMEGA].area == pytest.approx(expected)
    assert case_curves(values_of([]), [], HONEST, [OMEGA]) is None


def panels():
    values = values_of(member_lines([3, 2, 1], HONEST, 0))
    curves = case_curves(values, coalitions(HONEST), HONEST, [OMEGA])
    return [RemovalPanel("Digits", HONEST, curves), RemovalPanel("Digits", "label noise", None)]


def test_the_picture_says_its_finding_and_what_is_missing():
    picture = removal_picture(panels())
    assert f"Digits, honest: {RETRAINED_VALUES} 30.0, {OMEGA} -30.0." in picture.finding
    assert "label noise" not in picture.finding
    assert picture.caption == (
        "Missing: 8 of 10 pairs of curves. Trainings of each of the coalitions: Digits, honest: 2."
    )


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: str(sheet.width))
def test_the_picture_has_both_orders_of_all_that_is_known(sheet):
    text = removal_picture(panels()).draw(sheet)
    assert f"{OMEGA}, lowest first, 2 gone: 10.0" in text
    assert f"{OMEGA}, highest first, 2 gone: 40.0" in text
    assert "not trained yet" in text
    root = ElementTree.fromstring(text)
    drawn = [part.get("class") for part in root if part.tag.endswith("polyline")]
    assert (
        drawn
        == [f"curve {LOOKS[RETRAINED_VALUES].colour}"] * 2 + [f"curve {LOOKS[OMEGA].colour}"] * 2
    )
    for part in root:
        assert 0 <= float(part.get("x", 0)) <= sheet.width
