"""The pictures of the pages: nothing that is written in them lies outside."""

from __future__ import annotations

import re
from html import unescape

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from tests.test_docs_names import DOCS

PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
TEXT = re.compile(r'<text x="([-0-9.]+)" y="[-0-9.]+"([^>]*)>([^<]*)</text>')


def width_of(words: str, size: float, weight: str) -> float:
    """Return the width in a wide font, which many readers' machines have for want of another."""
    if not words:
        return 0.0
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return TextPath((0, 0), words, size=size, prop=font).get_extents().x1


@pytest.mark.parametrize("path", PICTURES, ids=[path.stem for path in PICTURES])
def test_no_word_is_cut_off_in_a_wide_font(path):
    picture = path.read_text()
    whole = float(re.findall(r'viewBox="0 0 ([0-9.]+) ', picture)[0])
    size = float(re.findall(r"text\{font:([0-9.]+)px", picture)[0])
    texts = TEXT.findall(picture)
    assert len(texts) == picture.count("<text")
    cut_off = []
    for place, attributes, words in texts:
        width = width_of(unescape(words), size, "bold" if "bold" in attributes else "normal")
        left = float(place)
        if '"middle"' in attributes:
            left -= width / 2
        if '"end"' in attributes:
            left -= width
        if left < 0 or left + width > whole:
            cut_off.append(words)
    assert cut_off == []
