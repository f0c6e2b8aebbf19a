"""Files, modules, commands, options and keys that the documentation names are there.

Read off the files and the command line: nothing here needs torch or builds the site.
"""

from __future__ import annotations

import keyword
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedif_studies.commands import cli

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
PACKAGES = ("fedif_flower", "fedif_consortium", "fedif_studies", "tests")
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "SECURITY.md",
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


def page_name(path: Path) -> str:
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


@pytest.mark.parametrize("page", PAGES, ids=page_name)
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


@pytest.mark.parametrize("page", PAGES, ids=page_name)
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


def test_what_a_contributor_is_told_to_write_is_there():
    """Each class, function, method and attribute that the steps name is defined somewhere."""
    steps = (REPOSITORY / "CONTRIBUTING.md").read_text().partition("\n## Add ")[2]
    coded = re.findall(r"`(\w+)(?:\([\w, ]*\)| = \w+)?`", steps)
    named = {name for name in coded if not keyword.iskeyword(name) and name not in PACKAGES}
    rooms = [REPOSITORY / "fedif_flower", REPOSITORY / "fedif_studies"]
    source = "\n".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    defined = set(re.findall(r"(?:def|class) (\w+)", source))
    defined |= set(re.findall(r"^ *(\w+)(?:: [^=\n]+)? = ", source, flags=re.MULTILINE))
    assert "weigh" in named
    assert named - defined == set()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
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


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_named_keys_are_there(page, keys):
    """``a-key=value`` is a key of a run, of a node's file or of a policy; ``a_name=...`` is not."""
    named = {found[1] for code in _inline(page) if (found := re.match(KEY_AND_VALUE, code))}
    assert named - keys - NOT_OURS == set()
