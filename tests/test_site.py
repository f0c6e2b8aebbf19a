"""The site builds, and works when its pages are opened as files, with no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.all
REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the site; a link, an anchor or a reference that does not resolve is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def site(built):
    """The site's pages by path."""
    folder = built
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.html")}


class Links(HTMLParser):
    """Collects where a page's tags lead, and what can be led to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {"", "__toc"}  # the theme's own: it is opened by its name

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def test_every_link_of_the_site_leads_somewhere_when_it_is_opened_as_files(built, site):
    pages = {(built / name).resolve(): Links() for name in site}
    for path, links in pages.items():
        links.feed(path.read_text())
    dead = []
    for path, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (path.parent / unquote(url.path)).resolve() if url.path else path
            there = file in pages and unquote(url.fragment) in pages[file].anchors
            if not (there or (file not in pages and file.is_file() and not url.fragment)):
                dead.append((path.name, target))
    assert dead == []


def test_the_search_needs_no_server(built, site):
    index = (built / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    found = json.loads(index.removeprefix("var __index = "))["docs"]
    # What an operator looks for is found under the word for it.
    assert any("revoke" in document["text"] for document in found)
    assert all("iframe-worker.js" in page for page in site.values())


@pytest.mark.skipif(shutil.which("chromium") is None, reason="it takes a browser")
def test_a_browser_finds_what_is_searched_in_a_file(built):
    page = (built / "methods" / "fedif.html").as_uri()
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
    shown = subprocess.run(
        [*command, "--virtual-time-budget=20000", "--dump-dom", f"{page}?q=revoke"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.search(r"[1-9]\d* matching documents?", shown)
    assert re.search(r'<a href="[^"]*consortium.html[^"]*" class="md-search-result__link"', shown)


def test_pages_need_no_network(site):
    fetched = r'(?:src|href)="(?:https?:)?//[^"]*"'
    for name, page in site.items():
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page)
        assert [tag for tag in tags if re.search(fetched, tag) and "canonical" not in tag] == [], (
            name
        )


def test_formulas_and_roles_are_rendered(site):
    assert "<math" in site["methods/fedif.html"]
    assert "<math" in site["reference/methods.html"]
    for name, page in site.items():
        for left in ("arithmatex", ":math:", ".. math::", ":class:", ":func:", ":meth:"):
            assert left not in page, f"{name} shows {left}"


def test_ranges_are_not_read_as_quotations(site):
    pages = [page for name, page in site.items() if name.startswith("reference/")]
    assert len(pages) == 2
    assert not any("<blockquote" in page for page in pages)


def test_home_is_the_readme_with_links_of_the_site(site):
    assert 'href="tutorial/deployment.html"' in site["index.html"]
    assert 'src="weight-scores.png"' in site["index.html"]
