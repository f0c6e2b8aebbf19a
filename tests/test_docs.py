"""The documentation is true: it builds, its links resolve, its code and commands work."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import benchmarks.__main__ as all_benchmarks
import fedif_flower
from fedif_flower import aggregators, attacks, masking, stages, valuation
from fedif_flower.attacks import ATTACKS
from fedif_flower.devices import torch_threads
from fedif_flower.member.policy import read_member_policy
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.settings import parse_overrides
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.sweeps.spec import read_sweep
from fedif_flower.valuation import shapley
from fedif_studies.commands import cli
from paper.docs import update_docs

# They share a site that is built once.
pytestmark = pytest.mark.xdist_group("docs")

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
WRITTEN = [
    *sorted(path for path in DOCS.rglob("*.md") if path.name != "notes.md"),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "deploy" / "README.md",
    REPOSITORY / "deploy" / "compose" / "README.md",
    *sorted(REPOSITORY.glob("examples/*/README.md")),
]
ROOMS = sorted(
    path for top in ("fedif_flower", "fedif_studies") for path in (REPOSITORY / top).iterdir()
)
POLICY = re.compile(r"^\[(apps|runs|runs\.config|leaves|log|sign)\]", flags=re.M)  # A member's.
METHODS = "\n".join(path.read_text() for path in (DOCS / "methods").glob("*.md"))
REFERENCE = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
ROLE = re.compile(
    r":(?:class|func|meth|attr|data|mod|exc):`~?((?:fedif_flower|fedif_studies|paper)\.[\w.]+)`"
)


def _name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.M)


# The README's example needs a project of the reader's own: tests/test_readme.py gives it one.
WITH_CODE = [path for path in WRITTEN if _blocks(path, "python") and path.name != "README.md"]


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


@pytest.mark.parametrize("path", [*WRITTEN, REPOSITORY / "CHANGELOG.md"], ids=_name)
def test_every_link_between_files_of_the_repository_leads_somewhere(path):
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.M)
    targets = [t for t in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text) if ":" not in t]
    assert [target for target in targets if not (path.parent / target).exists()] == []


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
    assert re.search(r'<a href="[^"]*operations.html[^"]*" class="md-search-result__link"', shown)


def test_wide_pictures_are_shown_whole_on_a_click(site):
    for name in ("arena", "arena-seeds", "arena-fashion-mnist", "arena-cifar10"):
        assert f'<a href="{name}.png"><img' in site[f"{name}.html"]


def test_pages_need_no_network(site):
    fetched = r'(?:src|href)="(?:https?:)?//[^"]*"'
    for name, page in site.items():
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page)
        assert [tag for tag in tags if re.search(fetched, tag) and "canonical" not in tag] == [], (
            name
        )


def test_formulas_and_roles_are_rendered(site):
    assert "<math" in site["methods/fedif.html"]
    assert "<math" in site["reference/strategies.html"]
    for name, page in site.items():
        for left in ("arithmatex", ":math:", ".. math::", ":class:", ":func:", ":meth:"):
            assert left not in page, f"{name} shows {left}"


def test_ranges_are_not_read_as_quotations(site):
    pages = [page for name, page in site.items() if name.startswith("reference/")]
    assert len(pages) > 5
    assert not any("<blockquote" in page for page in pages)


def test_home_is_the_readme_with_links_of_the_site(site):
    assert 'href="tutorial/deployment.html"' in site["index.html"]
    assert 'src="weight-scores.png"' in site["index.html"]


@pytest.mark.parametrize("path", WITH_CODE, ids=_name)
def test_code_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "documentation"}
    with torch_threads(1):  # small models: more threads would wait for each other
        for code in _blocks(path, "python"):
            exec(compile(code, str(path), "exec"), names)


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
def test_settings_in_commands_are_allowed(path, tmp_path):
    defaults = default_run_config()
    for block in _blocks(path, "sh"):
        for settings in re.findall(r"(?:-c |CONFIG=)'([^']*)'", block):
            RunConfig.from_run_config(defaults | parse_overrides(settings))
    for number, block in enumerate(_blocks(path, "toml")):
        spec = tmp_path / f"{number}.toml"
        spec.write_text(block)
        if POLICY.search(block):
            read_member_policy(spec)
            continue
        assert read_sweep(spec, defaults, tmp_path)


def test_commands_exist():
    text = "\n".join(block for path in WRITTEN for block in _blocks(path, "sh"))
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.M)
    assert set(re.findall(r"^make ([a-z-]+)", text, flags=re.M)) <= set(targets)
    commands = {c.name or c.callback.__name__ for c in cli.registered_commands}
    commands |= {group.name for group in cli.registered_groups}
    flat = [group.typer_instance for group in cli.registered_groups if not group.name]
    commands |= {c.name or c.callback.__name__ for one in flat for c in one.registered_commands}
    assert set(re.findall(r"^fedif ([\w-]+)", text, flags=re.M)) <= commands
    for line in re.findall(r"^(python -m [\w.]+)", text, flags=re.M):
        assert importlib.util.find_spec(shlex.split(line)[2]), line


@pytest.mark.parametrize(
    ("key", "names"),
    [("strategy", STRATEGIES), ("attack", [name for name in ATTACKS if name != "none"])],
)
def test_every_method_has_a_page_that_says_how_to_use_it(key, names):
    assert [name for name in names if f'{key}="{name}"' not in METHODS] == []


def test_every_estimator_is_described():
    page = (DOCS / "methods" / "shapley.md").read_text()
    assert [name for name in shapley.ESTIMATORS if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(
    "package", [fedif_flower, aggregators, attacks, masking, stages, valuation, shapley]
)
def test_every_public_name_is_in_the_reference(package):
    shown = {line.rsplit(".", 1)[-1] for line in re.findall(r"^::: (\S+)", REFERENCE, flags=re.M)}
    assert set(package.__all__) - shown == set()


@pytest.mark.parametrize("room", ROOMS, ids=_name)
def test_docstrings_refer_to_what_exists(room):
    files = room.rglob("*.py") if room.is_dir() else [room] if room.suffix == ".py" else []
    for file in files:
        for path in ROLE.findall(file.read_text()):
            assert _exists(path), f"{_name(file)} refers to {path}"


def _exists(path: str) -> bool:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        try:
            for name in parts[length:]:
                found = getattr(found, name)
        except AttributeError:
            return False
        return True
    return False


def test_results_are_those_of_the_committed_rows(tmp_path):
    (tmp_path / "results").mkdir()
    for path in (DOCS / "results").glob("*"):
        if not path.name.startswith("bench-"):
            (tmp_path / "results" / path.name).write_bytes(path.read_bytes())
    page = update_docs(tmp_path, [], default_run_config())
    assert page.read_text() == (DOCS / "results.md").read_text()


def test_benchmarks_are_those_of_the_committed_rows(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(all_benchmarks, "PROJECT", tmp_path)
    assert all_benchmarks.write_page().read_text() == (DOCS / "benchmarks.md").read_text()


def test_table_of_strategies_is_that_of_the_committed_rows():
    with (DOCS / "results" / "strategies.csv").open(newline="") as file:
        rows = [_row(row) for row in csv.DictReader(file)]
    page = (DOCS / "methods" / "index.md").read_text()
    assert [row for row in rows if row not in page] == []


def _row(row: dict[str, str]) -> str:
    def shown(key: str, factor: float, digits: int) -> str:
        return f"{float(row[key]) * factor:.{digits}f}" if row[key] else "-"

    cells = [
        f"`{row['strategy']}`",
        shown("test_accuracy", 100, 1),
        shown("test_accuracy_last_ten", 100, 1),
        shown("detection_auc", 1, 3),
        shown("malicious_weight_share", 100, 1),
        shown("aggregation_seconds_per_round", 1000, 1),
        shown("evaluations_per_round", 1, 0),
    ]
    return f"| {' | '.join(cells)} |"
