"""A picture in all widths, and the lines of a page that show the one that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fedif_flower.storage import make_folder, write_atomically
from fedif_studies.pictures.panels import SHEETS, Sheet

FOLDER = "pictures"  # In docs.
_NARROW = 640  # Pixels: pages up to this width show the narrow one.


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Attributes
    ----------
    name : str
        Its files' name.
    title : str
        What it shows.
    finding : str
        What is seen in it, for those who do not see it.
    caption : str
        What stands below it; must say what is missing.
    draw : callable
        Returns its text for a width.
    """

    name: str
    title: str
    finding: str
    caption: str
    draw: Callable[[Sheet], str]


def write_picture(docs: Path, picture: Picture, seen_from: str = "") -> list[str]:
    """Write a picture in all widths, and return the lines of a page that show it.

    Parameters
    ----------
    docs : Path
        It goes to ``docs/pictures``.
    picture : Picture
        The picture.
    seen_from : str
        The way from the page to docs, such as ``"docs/"``.
    """
    folder = docs / FOLDER
    make_folder(folder)
    sources = []
    for sheet in SHEETS:
        file = f"{picture.name}-{sheet.width}.svg"
        write_atomically(folder / file, picture.draw(sheet))
        sources.append(f"{seen_from}{FOLDER}/{file}")
    narrow, wide = sources
    alternative = escape(f"{picture.title}. {picture.finding}", quote=False)
    alternative = alternative.replace('"', "&quot;")
    return [
        "<picture>",
        f'<source media="(max-width: {_NARROW}px)" srcset="{narrow}">',
        f'<img src="{wide}" alt="{alternative}">',
        "</picture>",
        "",
        picture.caption,
        "",
    ]
