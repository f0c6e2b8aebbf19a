"""Pages that people open: templates in files, one layout, one style sheet, and no script.

The templates are HTML and CSS; their names end in ``.md``, because a run's server makes statements
out of a bundle of Flower's, which holds no files of other kinds than Python, TOML, Markdown, YAML
and JSON.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedif_flower.messages.text import printable

TEMPLATES = Path(__file__).parent / "templates"
MAX_PAGE_BYTES = 1024 * 1024
# A browser that reads this first runs no script on the page and fetches nothing for it.
PAGE_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" content="'
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'\">\n"
)


_VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
# What a statement is written with: text, tables and drawings. None of these leads elsewhere, sends
# anything, or lies over the page to do so.
_FRAME = {"html", "head", "title", "style", "body", "header", "footer", "section"}
_TEXT = {"h1", "h2", "p", "b", "br", "small", "span", "div", "code"}
_LISTS = {"ul", "ol", "li", "dl", "dt", "dd"}
_TABLES = {"table", "colgroup", "col", "thead", "tbody", "tfoot", "tr", "th", "td"}
_FIGURES = {"figure", "figcaption"}
_DRAWINGS = {"svg", "g", "line", "rect", "circle", "path", "polyline", "text"}
_ELEMENTS = _FRAME | _TEXT | _LISTS | _TABLES | _FIGURES | _DRAWINGS
# Whatever a browser may take for a tag, in comments and style sheets too: more than there are.
_TAG = re.compile(r"<[/!?]*([a-z][^\s/>]*)", re.IGNORECASE)


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the templates; what is put into them is escaped, and nothing may be missing."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    environment.globals["head"] = Markup(PAGE_HEAD)
    return environment


def refuse_page(page: bytes) -> str:
    """Return why a page that a server writes on a node is not taken; empty: it is."""
    if len(page) > MAX_PAGE_BYTES:
        return f"the page has {len(page)} bytes; allowed: {MAX_PAGE_BYTES}"
    if not page.startswith(PAGE_HEAD.encode()):
        return "the page does not begin with the policy that forbids scripts"
    try:
        text = page.decode()
    except UnicodeDecodeError:
        return "the page is no UTF-8"
    # The head has one of its own, and no other may tell a browser to go elsewhere.
    body = text.removeprefix(PAGE_HEAD).replace(_VIEWPORT, "", 1)
    for tag in _TAG.findall(body):
        if tag.lower() not in _ELEMENTS:
            return f"the page has <{printable(tag, 20)}>, which no statement has"
    return ""
