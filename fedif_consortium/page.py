"""HTML pages that people open: templates in files, one layout, one style sheet, and no script.

The templates are HTML and CSS, although their names end in ``.md``: a run's server makes statements
from an app bundle of Flower's, and a bundle holds only Python, TOML, Markdown, YAML and JSON files.
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
# The policy comes first in the file, so it holds for everything behind it: the browser runs no
# script on the page and fetches nothing for it.
PAGE_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" content="'
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'\">\n"
)


_VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
# The elements of a statement: text, tables and drawings. None of them is a link, sends anything, or
# loads another page.
_FRAME = {"html", "head", "title", "style", "body", "header", "footer", "section"}
_TEXT = {"h1", "h2", "p", "b", "br", "small", "span", "div", "code"}
_LISTS = {"ul", "ol", "li", "dl", "dt", "dd"}
_TABLES = {"table", "colgroup", "col", "thead", "tbody", "tfoot", "tr", "th", "td"}
_FIGURES = {"figure", "figcaption"}
_DRAWINGS = {"svg", "g", "line", "rect", "circle", "path", "polyline", "text"}
_ELEMENTS = _FRAME | _TEXT | _LISTS | _TABLES | _FIGURES | _DRAWINGS
# Everything that a browser may take for a tag. It also matches in comments and style sheets: a page
# may be refused for a tag that no browser would see, but no tag is missed.
_TAG = re.compile(r"<[/!?]*([a-z][^\s/>]*)", re.IGNORECASE)


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the templates; they escape each value, and raise an error if a value is missing."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    environment.globals["head"] = Markup(PAGE_HEAD)
    return environment


def reason_against_page(page: bytes) -> str:
    """Return why a node refuses to store a page that the server sent; empty: it stores the page."""
    if len(page) > MAX_PAGE_BYTES:
        return f"the page has {len(page)} bytes; allowed: {MAX_PAGE_BYTES}"
    if not page.startswith(PAGE_HEAD.encode()):
        return "the page does not begin with the policy that forbids scripts"
    try:
        text = page.decode()
    except UnicodeDecodeError:
        return "the page is no UTF-8"
    # The head and the viewport have the only <meta> elements that are allowed: another one could
    # tell the browser to go elsewhere.
    body = text.removeprefix(PAGE_HEAD).replace(_VIEWPORT, "", 1)
    for tag in _TAG.findall(body):
        if tag.lower() not in _ELEMENTS:
            return f"the page has <{printable(tag, 20)}>, which no statement has"
    return ""
