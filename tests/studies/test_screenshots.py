"""The pictures of the operator's tutorial."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from fedif_studies.screenshots import ABSENT, CLINICS, PHONE, Clinics, draw
from tests.run.watch.browser import needs_browser

DOCS = Path(__file__).parents[2] / "docs"


def test_a_clinic_that_is_gone_is_not_reached_and_keeps_its_name():
    grid = Clinics()
    everybody = grid.get_node_ids()
    grid.is_gone = True
    assert set(everybody) - set(grid.get_node_ids()) == {everybody[ABSENT]}
    assert [node.name for node in grid.get_nodes()] == list(CLINICS)


@needs_browser
def test_a_page_is_drawn_as_wide_as_a_phone(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<body style="margin:0;background:#1f5fa8">')
    image = Image.open(draw(page, tmp_path / "picture.png", PHONE)).convert("RGB")
    assert image.size == PHONE
    assert image.getpixel((PHONE[0] - 1, PHONE[1] - 1)) == (0x1F, 0x5F, 0xA8)


def test_pictures_of_the_tutorial_are_small():
    pictures = sorted((DOCS / "tutorial").glob("watch-*.png"))
    assert [p.name for p in pictures] == [
        "watch-finished.png",
        "watch-phone.png",
        "watch-running.png",
    ]
    assert all(picture.stat().st_size < 150_000 for picture in pictures)
