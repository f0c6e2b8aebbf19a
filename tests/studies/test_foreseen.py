"""What liars gain by foreseeing draws, in one round."""

from __future__ import annotations

import pytest

from fedif_studies import foreseen
from fedif_studies.foreseen import bucketing, clients, dnc, flame, orders
from tests.test_docs_names import DOCS


def test_liars_who_foresee_the_coordinates_of_dnc_take_a_part_of_the_step():
    assert dnc(0, 1, foreseen=False) == pytest.approx(0.0, abs=0.02)
    assert dnc(0, 1, foreseen=True) > 0.25


def test_liars_who_foresee_the_draw_choose_who_of_them_is_online():
    for number in (1, 2, 3):
        assert clients(0, number, foreseen=True) >= clients(0, number, foreseen=False)
        assert orders(0, number, foreseen=True) >= orders(0, number, foreseen=False)
        assert 0.2 <= bucketing(0, number, foreseen=True) <= 0.4  # Of ten groups, two to four.
    assert clients(0, 2, foreseen=True) > 0.3


def test_nobody_who_sends_no_noise_takes_any_away():
    assert flame(0, 1, foreseen=False) == 0.0


def test_the_page_on_rules_has_the_rows():
    page = (DOCS / "methods" / "robust-rules.md").read_text()
    assert "\n".join(foreseen.table().to_markdown()) in page


def test_a_row_has_the_means_of_the_rounds(monkeypatch):
    def figure(seed: int, server_round: int, *, foreseen: bool) -> float:
        return seed + server_round + 100 * foreseen

    monkeypatch.setitem(foreseen.FIGURES, "dnc", figure)
    [row] = foreseen.measure({"draw": "dnc", "seed": 3})
    assert row == {"not foreseen": "8.5000", "foreseen": "108.5000"}
