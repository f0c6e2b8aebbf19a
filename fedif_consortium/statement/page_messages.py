"""What a page that a server writes on a node may be: bounded, and without anything that runs."""

from __future__ import annotations

MAX_PAGE_BYTES = 1024 * 1024
# A browser that reads this first runs no script on the page and fetches nothing for it.
PAGE_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" content="'
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'\">\n"
)


def refuse_page(page: bytes) -> str:
    """Return why a page is not taken; empty: it is."""
    if len(page) > MAX_PAGE_BYTES:
        return f"the page has {len(page)} bytes; allowed: {MAX_PAGE_BYTES}"
    if not page.startswith(PAGE_HEAD.encode()):
        return "the page does not begin with the policy that forbids scripts"
    try:
        page.decode()
    except UnicodeDecodeError:
        return "the page is no UTF-8"
    return ""
