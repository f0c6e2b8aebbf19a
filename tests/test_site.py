"""The site builds, and works when its pages are opened as files, with no network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build the site; a link, an anchor or a reference that does not resolve is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    own = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"make docs fails:\n{done.stdout}{done.stderr}"
    return folder


@pytest.fixture(scope="module")
def site(built) -> dict[str, str]:
    """The site's pages by path."""
    return {str(path.relative_to(built)): path.read_text() for path in built.rglob("*.html")}


def test_the_search_needs_no_server(built, site):
    index = (built / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    found = json.loads(index.removeprefix("var __index = "))["docs"]
    # What an operator looks for is found under the word for it.
    assert any("revoke" in document["text"] for document in found)
    assert all("iframe-worker.js" in page for page in site.values())


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


def test_home_is_the_readme_with_links_of_the_site(site):
    assert 'href="tutorial/deployment.html"' in site["index.html"]
    assert 'src="weight-scores.png"' in site["index.html"]
    assert 'srcset="pictures/at-a-glance-380.svg"' in site["index.html"]


def test_every_picture_of_a_page_is_there(built, site):
    for name, page in site.items():
        sources = re.findall(r'<(?:img|source)\b[^>]*?\b(?:src|srcset)="([^"]+)"', page)
        files = [source for source in sources if not source.startswith("data:")]
        folder = (built / name).parent
        assert [file for file in files if not (folder / file).exists()] == [], name
