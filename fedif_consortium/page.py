"""Pages that people open: templates in files, one layout, one style sheet, and no script.

The templates are HTML and CSS; their names end in ``.md``, because a run's server makes statements
out of a bundle of Flower's, which holds no files of other kinds than Python, TOML, Markdown, YAML
and JSON.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
MAX_PAGE_BYTES = 1024 * 1024
# A browser that reads this first runs no script on the page and fetches nothing for it.
PAGE_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" content="'
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'\">\n"
)


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the templates; what is put into them is escaped, and nothing may be missing."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    found.globals["head"] = Markup(PAGE_HEAD)
    return found


def refuse_page(page: bytes) -> str:
    """Return why a page that a server writes on a node is not taken; empty: it is."""
    if len(page) > MAX_PAGE_BYTES:
        return f"the page has {len(page)} bytes; allowed: {MAX_PAGE_BYTES}"
    if not page.startswith(PAGE_HEAD.encode()):
        return "the page does not begin with the policy that forbids scripts"
    try:
        page.decode()
    except UnicodeDecodeError:
        return "the page is no UTF-8"
    return ""
