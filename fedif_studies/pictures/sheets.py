"""Writes a picture in two widths, and the lines of a page that show the one that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fedif_flower.storage import make_folder, write_atomically
from fedif_studies.pictures.panels import SHEETS, Sheet

FOLDER = "pictures"  # In the folder of the documentation.
_NARROW = 640  # Pages of up to so many pixels show the narrow picture.


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Attributes
    ----------
    name : str
        The name of its files, without width and ending.
    title : str
        What it shows.
    finding : str
        A sentence on what one sees in it, for readers who cannot see it.
    caption : str
        The text below it. It has to say what is missing.
    draw : callable
        Takes a sheet and returns the text of the SVG file.
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
        The folder of the documentation; the files go to ``docs/pictures``.
    picture : Picture
        The picture.
    seen_from : str
        The path from the page's folder to ``docs``, such as ``"docs/"``.
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
