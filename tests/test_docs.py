"""The documentation is true: its links resolve, its code works, what it names is there."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from typer.main import get_command

import fedif_flower
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.parts import server_parts
from fedif_flower import aggregators, attacks, stages, valuation
from fedif_flower.attacks import ATTACKS
from fedif_flower.devices import torch_threads
from fedif_flower.run.config import RunConfig
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import parse_overrides
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.valuation import shapley
from fedif_studies.commands import cli
from fedif_studies.lab.spec import read_sweep
from fedif_studies.paper.report import update_docs
from tests.strategies.hostile import Clients

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
PACKAGES = ("fedif_flower", "fedif_consortium", "fedif_studies", "tests")
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted(REPOSITORY.glob("deploy/**/*.md")),
    *sorted(REPOSITORY.glob("examples/*/README.md")),
]
PYTHON = [
    path
    for top in (*PACKAGES, "examples", "deploy", "docs")
    for path in sorted((REPOSITORY / top).rglob("*.py"))
] + sorted(REPOSITORY.glob("*.py"))
KEY_PAGES = ("configuration.md", "member-policy.md", "methods/masked-rounds.md", "operations.md")
KEY_AND_VALUE = r"([a-z][a-z0-9]*(?:[-.][a-z0-9]+)+) ?= ?(?:['\"\d]|true|false)"
NOT_OURS = {"client-resources-num-cpus"}  # Flower's.
GONE = "no longer part of the tree"  # Said of a command that a figure was once measured by.


def _name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def _paragraphs(path: Path) -> list[str]:
    """Return a page's paragraphs that speak of what is there."""
    return [text for text in re.split(r"\n\s*\n", path.read_text()) if GONE not in text]


def _inline(path: Path) -> list[str]:
    """Return what stands between backticks, with its line breaks as spaces."""
    text = re.sub(r"^ *```.*?^ *```", "", "\n\n".join(_paragraphs(path)), flags=re.DOTALL | re.M)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def blocks_of(text: str, language: str) -> list[str]:
    """Return the blocks of code in a page's text; ``language`` may be several, by bars."""
    pattern = rf"^ *```(?:{language})\n(.*?)^ *```"
    return re.findall(pattern, text, flags=re.DOTALL | re.MULTILINE)


def _lines(path: Path) -> list[str]:
    """Return the lines of a page's shell blocks, each with its continuations."""
    blocks = blocks_of(path.read_text(), "sh|bash|console")
    return "".join(blocks).replace("\\\n", " ").splitlines()


@pytest.fixture(scope="module")
def tails() -> set[str]:
    """Every way to name a Python file from one of its folders on."""
    parts = [path.relative_to(REPOSITORY).parts for path in PYTHON]
    return {"/".join(part[i:]) for part in parts for i in range(len(part))}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_named_files_are_there(page, tails):
    named = {
        word.strip("(),;\"'").split("::")[0] for code in _inline(page) for word in code.split()
    }
    python = {word for word in named if re.fullmatch(r"[\w./-]*\w\.py", word)}
    gone = {word for word in python if word.removeprefix("./") not in tails}
    tops = "|".join((*PACKAGES, "docs", "deploy", "examples"))
    inside = {word for word in named if re.fullmatch(rf"(?:{tops})/[\w./-]+", word)}
    ignored = {word for word in inside if word.endswith(".env")}  # Written by whoever deploys.
    gone |= {word for word in inside - ignored if not (REPOSITORY / word).exists()}
    assert gone == set()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_named_modules_are_there(page):
    text = "\n".join(_paragraphs(page))
    named = set(re.findall(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.\w+)+", text))
    named = {name for name in named if not name.endswith(".md")}
    assert {name for name in named if not is_there(name)} == set()


def is_there(name: str) -> bool:
    """Return whether a dotted name is a module, or is defined or imported in one."""
    *parents, last = name.split(".")
    where = REPOSITORY.joinpath(*parents)
    if (where / last).is_dir() or (where / f"{last}.py").is_file():
        return True
    for file in (where / "__init__.py", where.with_suffix(".py")):
        if file.is_file() and re.search(rf"\b{last}\b", file.read_text()):
            return True
    return len(parents) > 1 and parents[-1][0].isupper() and is_there(".".join(parents))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_named_commands_and_their_options_are_there(page):
    root: Any = get_command(cli)
    wrong = []
    for line in [*_inline(page), *_lines(page)]:
        if not re.match(r"\$? ?fedif( [a-z-]+)+", line):
            continue
        try:
            words = shlex.split(line.lstrip("$ "), comments=True)[1:]
        except ValueError:  # A quotation that a sentence cut.
            words = line.lstrip("$ ").split()[1:]
        command = root
        while words and hasattr(command, "commands"):
            named = command.commands.get(words[0])
            # A group may have a command whose name may be left out, such as `fedif statement`.
            if named is None and (named := command.commands.get("make")) is None:
                break
            command, words = named, words[words[0] in command.commands :]
        if hasattr(command, "commands") and words and not words[0].startswith("-"):
            wrong.append(line)
            continue
        options = {
            name for option in command.params for name in (*option.opts, *option.secondary_opts)
        }
        own = re.split(r"[|;&]| -- ", f" {' '.join(words)}")[0].split()
        used = {word.split("=")[0] for word in own if re.match(r"--?[a-z]", word)}
        wrong += [f"{line}: {option}" for option in used - options - {"--help"}]
    assert wrong == []


@pytest.fixture(scope="module")
def keys() -> set[str]:
    """Every key of the reference's tables, of whose lines the first cell names them."""
    lines = "\n".join((DOCS / name).read_text() for name in KEY_PAGES).splitlines()
    cells = [line.split("|")[1:3] for line in lines if line.startswith("|")]
    return set(re.findall(r"`([a-z][\w.-]*)[` ]", " ".join(map(" ".join, cells))))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_named_keys_are_there(page, keys):
    """``a-key=value`` is a key of a run, of a node's file or of a policy; ``a_name=...`` is not."""
    named = {found[1] for code in _inline(page) if (found := re.match(KEY_AND_VALUE, code))}
    assert named - keys - NOT_OURS == set()


ROOMS = sorted(path for top in PACKAGES[:3] for path in (REPOSITORY / top).iterdir())
POLICY = re.compile(r"^\[(apps|runs|runs\.config|leaves|log|sign)\]", flags=re.M)  # A member's.
METHODS = "\n".join(path.read_text() for path in (DOCS / "methods").glob("*.md"))
REFERENCE = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
ROLE = re.compile(
    r":(?:class|func|meth|attr|data|mod|exc):`~?((?:fedif_flower|fedif_consortium|fedif_studies)\.[\w.]+)`"
)


# The README's example needs a project of the reader's own, see below.
# That of `own-app.md` runs in test_tutorial.py, which looks at what comes of it.
OTHERS = ("README.md", "own-app.md")
WITH_CODE = [
    pytest.param(path, marks=[pytest.mark.all] * (path.name == "own-parts.md"), id=_name(path))
    for path in PAGES
    if path.name not in OTHERS and blocks_of(path.read_text(), "python")
]


@pytest.mark.parametrize("path", [*PAGES, REPOSITORY / "CHANGELOG.md"], ids=_name)
def test_every_link_between_files_of_the_repository_leads_somewhere(path):
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.M)
    targets = [t for t in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text) if ":" not in t]
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", WITH_CODE)
def test_code_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "documentation"}
    with torch_threads(1):  # small models: more threads would wait for each other
        for code in blocks_of(path.read_text(), "python"):
            exec(compile(code, str(path), "exec"), names)


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_settings_in_commands_are_allowed(path, tmp_path):
    defaults = RunConfig.defaults()
    for block in blocks_of(path.read_text(), "sh"):
        for settings in re.findall(r"(?:-c |CONFIG=)'([^']*)'", block):
            RunConfig.from_run_config(defaults | parse_overrides(settings), server_parts())
    for number, block in enumerate(blocks_of(path.read_text(), "toml")):
        spec = tmp_path / f"{number}.toml"
        spec.write_text(block)
        if POLICY.search(block):
            read_member_policy(spec)
            continue
        assert read_sweep(spec, defaults, tmp_path)


def test_commands_exist():
    text = "\n".join(block for path in PAGES for block in blocks_of(path.read_text(), "sh"))
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.M)
    assert set(re.findall(r"^make ([a-z-]+)", text, flags=re.M)) <= set(targets)
    for line in re.findall(r"^(python -m [\w.]+)", text, flags=re.M):
        assert importlib.util.find_spec(shlex.split(line)[2]), line


@pytest.mark.parametrize(
    ("key", "names"),
    [("strategy", STRATEGIES), ("attack", [name for name in ATTACKS if name != "none"])],
)
def test_every_method_has_a_page_that_says_how_to_use_it(key, names):
    forms = (f'{key}="{{}}"', "`{}`")
    assert [n for n in names if not any(form.format(n) in METHODS for form in forms)] == []


def test_every_estimator_is_described():
    page = (DOCS / "methods" / "shapley.md").read_text()
    assert [name for name in shapley.ESTIMATORS if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(
    "package",
    [fedif_flower, aggregators, attacks, stages, valuation, shapley],
)
def test_every_public_name_is_in_the_reference(package):
    shown = {line.rsplit(".", 1)[-1] for line in re.findall(r"^::: (\S+)", REFERENCE, flags=re.M)}
    assert set(package.__all__) - shown == set()


@pytest.mark.parametrize("room", ROOMS, ids=_name)
def test_docstrings_refer_to_what_exists(room):
    files = room.rglob("*.py") if room.is_dir() else [room] if room.suffix == ".py" else []
    for file in files:
        assert [path for path in ROLE.findall(file.read_text()) if not is_there(path)] == [], file


def test_results_are_those_of_the_committed_rows(tmp_path):
    (tmp_path / "results").mkdir()
    for path in (DOCS / "results").glob("*"):
        if not path.name.startswith("bench-"):
            (tmp_path / "results" / path.name).write_bytes(path.read_bytes())
    shutil.copy(DOCS / "results.md", tmp_path)
    page = update_docs(tmp_path, [], RunConfig.defaults())
    assert page.read_text() == (DOCS / "results.md").read_text()


README = (REPOSITORY / "README.md").read_text()


def test_library_example(tmp_path, monkeypatch, capsys):
    (code,) = blocks_of(README, "python")
    project = types.ModuleType("my_project")
    project.Net = lambda: torch.nn.Linear(2, 2)
    project.held_out_data = lambda: (torch.eye(2), torch.tensor([0, 1]))
    monkeypatch.setitem(sys.modules, "my_project", project)
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    exec(compile(code, "README.md", "exec"), namespace)
    grid = LocalGrid(Clients(), 4)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    namespace["app"](grid, context)
    assert (tmp_path / "model.pt").exists()
    assert "{'node 100" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/first-run.md"])
def test_flwr_run_has_what_it_needs(page):
    """Flower finds its programs on the path alone, and else installs every package again."""
    text = (REPOSITORY / page).read_text()
    for needed in ("flwr run . --stream", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"):
        assert needed in text
    assert "activate" in text
