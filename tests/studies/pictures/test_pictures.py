"""A picture's parts: scales, words in lines, points, and colours that everybody tells apart."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fedif_studies.audit.removal_picture import LOOKS as REMOVAL_LOOKS
from fedif_studies.paper.points import LOOKS
from fedif_studies.pictures import svg
from fedif_studies.pictures.panels import SHEETS, Scale, draw_legend, limits, panel_grid, wrapped
from fedif_studies.pictures.sheets import Picture, write_picture
from fedif_studies.pictures.svg import Drawing, Look


def test_values_have_places():
    scale = Scale(20.0, 70.0, start=200.0, end=100.0)  # Upwards on a page.
    assert [scale(value) for value in (20, 45, 70)] == [200, 150, 100]
    seconds = Scale(0.01, 100.0, start=0.0, end=400.0, is_log=True)
    assert [seconds(value) for value in (0.01, 1, 10)] == pytest.approx([0, 200, 300])


@pytest.mark.parametrize(
    ("scale", "most", "ticks"),
    [
        (Scale(23, 67, 0, 1), 6, [30, 40, 50, 60]),
        (Scale(0, 100, 0, 1), 6, [0, 20, 40, 60, 80, 100]),
        (Scale(0.45, 1.02, 0, 1), 6, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (Scale(0.0002, 180, 0, 1, is_log=True), 6, [0.001, 0.01, 0.1, 1, 10, 100]),
        (Scale(0.0002, 180, 0, 1, is_log=True), 3, [0.001, 0.1, 10]),
    ],
)
def test_round_values_have_lines(scale, most, ticks):
    assert scale.ticks(most) == pytest.approx(ticks)


def test_there_is_room_around_values_even_around_one():
    assert limits([10, 60]) == (7, 63)
    assert limits([5, 5]) == (4, 6)


def test_panels_stand_in_rows_within_their_sheet():
    for sheet in SHEETS:
        room = {"start": 50.0, "height": 100.0, "above": 20.0, "below": 10.0, "left": 30.0}
        grid = panel_grid(sheet, 5, 3, **room)
        assert [box.top for box in grid.boxes] == [70, 70, 70, 200, 200]
        assert grid.bottom == 50 + 2 * 130
        assert max(box.right for box in grid.boxes) < sheet.width
        assert [grid.is_first(index) for index in range(5)] == [True, False, False, True, False]
        pairs = itertools.pairwise(grid.boxes[:3])
        assert all(first.right < second.left for first, second in pairs)


def test_words_are_set_in_lines():
    assert wrapped("one two three", width=5.6 * 8, size=10) == ["one two", "three"]
    assert wrapped("unbreakable", width=1, size=10) == ["unbreakable"]


def parts_of(text: str) -> list[tuple[str, str]]:
    """Return tag and class of everything that is drawn."""
    root = ElementTree.fromstring(text)
    return [(part.tag.rpartition("}")[2], part.get("class") or "") for part in root]


def test_a_point_is_full_holed_or_hollow_and_says_what_it_is():
    drawing = Drawing(100, 50, "A title", "<what> is seen", 10)
    for kind in ("filled", "holed", "hollow"):
        drawing.point((10, 20), Look("blue", "circle"), kind, "FedIF & co: 3")
    text = drawing.to_text()
    points = [part for part in parts_of(text) if part[0] in ("path", "circle")]
    assert points == [
        ("path", "filled blue"),
        ("path", "holed blue"),
        ("circle", "ground"),
        ("path", "hollow blue"),
    ]
    assert text.count("<title>FedIF &amp; co: 3</title>") == 3
    assert "<desc>&lt;what&gt; is seen</desc>" in text


@pytest.mark.parametrize("shape", ["circle", "square", "diamond", "triangle", "wedge", "star"])
def test_every_shape_lies_around_its_place(shape):
    drawing = Drawing(100, 100, "", "", 10)
    drawing.point((50, 50), Look("blue", shape), "filled")
    (path,) = re.findall(r' d="M([^"]*)z"', drawing.to_text())
    if shape == "circle":
        assert path == "46.4 50a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0"
        return
    corners = np.array([corner.split() for corner in path.split("L")], dtype=float)
    assert corners.mean(axis=0) == pytest.approx([50, 50], abs=0.1)


def test_a_legend_goes_on_in_another_line_where_there_is_no_room():
    entries = [(Look("blue", "circle"), "filled", "a long name of a method")] * 3
    narrow, wide = (draw_legend(Drawing(s.width, 9, "", "", s.size), s, 0, entries) for s in SHEETS)
    assert wide == pytest.approx(1.6 * SHEETS[1].size)
    assert narrow == pytest.approx((1.6 + 2 * 1.6) * SHEETS[0].size)


@pytest.mark.parametrize("sheet", SHEETS)
def test_a_legend_keeps_words_and_the_next_point_apart_in_a_wide_font_too(sheet):
    drawing = Drawing(sheet.width, 9, "", "", sheet.size)
    draw_legend(drawing, sheet, 0, [(Look("green", "circle"), "filled", "AFedSV")] * 2)
    begin = float(re.findall(r'<text x="([0-9.]+)"', drawing.to_text())[0])
    _, point = re.findall(r' d="M([0-9.]+) [^"]*z"', drawing.to_text())
    # A, F, e, d, S, V in DejaVu Sans, by its own table of widths.
    wide = (0.684 + 0.575 + 0.615 + 0.635 + 0.635 + 0.684) * sheet.size
    assert float(point) - (begin + wide) > 0.5 * sheet.size


def test_a_picture_is_there_in_both_widths_light_and_dark(tmp_path):
    def draw(sheet):
        return Drawing(sheet.width, 50, "t", "f", sheet.size).to_text()

    picture = Picture("name", "A title", 'It says "5 > 3"', "Missing: 1 of 2.", draw)
    lines = write_picture(tmp_path, picture, "docs/")
    assert lines == [
        "<picture>",
        '<source media="(max-width: 640px)" srcset="docs/pictures/name-380.svg">',
        '<img src="docs/pictures/name-1240.svg" alt="A title. It says &quot;5 &gt; 3&quot;">',
        "</picture>",
        "",
        "Missing: 1 of 2.",
        "",
    ]
    for width in (380, 1240):
        text = (tmp_path / "pictures" / f"name-{width}.svg").read_text()
        assert f'width="{width}"' in text
        light, _, dark = text.partition("@media(prefers-color-scheme:dark)")
        assert ".ground{fill:#ffffff}" in light
        assert ".ground{fill:#14181f}" in dark


# Viénot, Brettel and Mollon 1999: what who lacks a kind of cones sees of linear red, green, blue.
PROTANOPIA = [[0.1124, 0.8876, 0.0], [0.1124, 0.8876, 0.0], [0.004, -0.004, 1.0]]
DEUTERANOPIA = [[0.2927, 0.7073, 0.0], [0.2927, 0.7073, 0.0], [-0.0223, 0.0223, 1.0]]


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("scheme", [svg._LIGHT, svg._DARK], ids=["light", "dark"])
@pytest.mark.parametrize("seen", [np.eye(3), PROTANOPIA, DEUTERANOPIA], ids=["all", "red", "green"])
@pytest.mark.parametrize("looks", [LOOKS, REMOVAL_LOOKS], ids=["methods", "valuations"])
def test_methods_are_told_apart_by_everybody(scheme, seen, looks):
    shown = [np.cbrt(np.array(seen) @ linear(scheme[look.colour])) for look in looks.values()]
    for first, second in itertools.combinations(shown, 2):
        assert np.linalg.norm(first - second) > 0.1
    assert len({look.shape for look in looks.values()}) == len(looks)
