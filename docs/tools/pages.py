"""MkDocs hooks: pages that lie elsewhere in the repository, links between them, formulas.

README.md is the site's home; the deployment guide, CONTRIBUTING.md, SECURITY.md, CHANGELOG.md, the
examples and the notebooks are pages too.
Each exists once, where readers of the repository look for it, and its links work there; the hooks
translate them into links of the site. Formulas become MathML while the site is built, so that
pages need no script and no network.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path

from gallery import NOTEBOOKS, read, render
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[2]
# Page of the site, below docs/: its file in the repository.
REPOSITORY_PAGES = {
    "index.md": "README.md",
    "tutorial/deployment.md": "deploy/README.md",
    "tutorial/containers.md": "deploy/compose/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "reporting.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
for _readme in sorted(REPOSITORY.glob("examples/*/README.md")):
    _folder = _readme.parent
    REPOSITORY_PAGES[f"examples/{_folder.name}.md"] = f"examples/{_folder.name}/README.md"
    for _picture in _folder.glob("*.png"):
        REPOSITORY_PAGES[f"examples/{_folder.name}-{_picture.name}"] = str(
            _picture.relative_to(REPOSITORY)
        )
# What notebooks become, by page; their pictures are in them, and are named as if they lay beside.
RENDERED: dict[str, str | bytes] = {}
for _notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
    _text, _pictures = render(read(_notebook), _notebook.stem)
    RENDERED[f"examples/{_notebook.stem}.md"] = _text
    REPOSITORY_PAGES[f"examples/{_notebook.stem}.md"] = f"examples/notebooks/{_notebook.name}"
    for _name, _drawn in _pictures.items():
        RENDERED[f"examples/{_name}"] = _drawn
        REPOSITORY_PAGES[f"examples/{_name}"] = f"examples/notebooks/{_name}"
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
# Of a picture in several widths, which Markdown has no words for.
_SOURCE = re.compile(r'(\b(?:src|srcset)=")([^"\s#]+)()(")')
_FENCE = re.compile(r"^( *```.*?^ *```)", flags=re.DOTALL | re.MULTILINE)
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', flags=re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that lie outside docs/."""
    for page, source in REPOSITORY_PAGES.items():
        content = RENDERED[page] if page in RENDERED else (REPOSITORY / source).read_bytes()
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate links between files of the repository into links of the site."""
    del config, files
    return translate_links(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas as MathML."""
    del page, config, files
    return _FORMULA.sub(_to_mathml, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Remove the page for wrong addresses: it is for servers, and dead where files are opened."""
    (Path(config.site_dir) / "404.html").unlink(missing_ok=True)


def translate_links(markdown: str, page: str) -> str:
    """Return ``markdown`` with the links that hold on ``page``; code blocks stay as they are."""
    source = REPOSITORY_PAGES.get(page, f"docs/{page}")
    pages = {path: f"docs/{name}" for name, path in REPOSITORY_PAGES.items()}

    def translate(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups(default="")
        if ":" in target:
            return match.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        here = posixpath.dirname(f"docs/{page}")
        return f"{opening}{posixpath.relpath(pages.get(path, path), here)}{anchor}{closing}"

    parts = _FENCE.split(markdown)
    for index in range(0, len(parts), 2):  # Every other part is code.
        parts[index] = _SOURCE.sub(translate, _LINK.sub(translate, parts[index]))
    return "".join(parts)


def _to_mathml(match: re.Match[str]) -> str:
    formula = html.unescape(match.group(2)).strip()
    display = "block" if formula.startswith(r"\[") else "inline"
    return convert(formula[2:-2].strip(), display=display)
