from __future__ import annotations

import json
import subprocess
import sys
from errno import ENAMETOOLONG
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import fedif_flower
from fedif_consortium.evidence.chained_log import ChainedLog
from fedif_flower.cli import main as library_main
from fedif_flower.cli import parse_config
from fedif_flower.errors import ConfigError
from fedif_flower.listing import listing
from fedif_studies import start
from fedif_studies.commands import main

PROJECT = Path(__file__).parents[1]
HEAVY = ("torch", "torchvision", "flwr", "ray", "sklearn", "scipy", "matplotlib", "numpy", "PIL")
HELP = [
    *([], ["run"], ["sweep"], ["verify"], ["keeper"], ["app"], ["app", "show"], ["node", "log"]),
    *(["watch"], ["runs"], ["report"], ["show"], ["validation", "check"]),
]
ASK_FOR_HELP = f"""
import contextlib, io, json, sys
sys.path.insert(0, "")
import fedif_flower
from {{door}} import main
said = []
for words in {HELP!r}:
    sys.argv = ["fedif", *words, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    said.append(out.getvalue())
print(json.dumps([said, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


@pytest.mark.parametrize("door", ["fedif_studies.commands", "simulation"])
def test_help_imports_nothing_heavy(door):
    command = [sys.executable, "-c", ASK_FOR_HELP.format(door=door)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=True)
    said, heavy = json.loads(done.stdout)
    assert heavy == [], f"imported at the top of a module that {door} imports"
    assert [words for words, text in zip(HELP, said, strict=True) if "Usage:" not in text] == []
    assert "a run's folder" in said[HELP.index(["show"])]


def test_the_package_has_its_public_names():
    for name in fedif_flower.__all__:
        assert getattr(fedif_flower, name).__name__ == name, name
    assert set(fedif_flower.__all__) <= set(dir(fedif_flower))
    with pytest.raises(AttributeError, match="'fedif_flower' has no attribute 'FedIV'"):
        fedif_flower.FedIV  # noqa: B018


@pytest.fixture
def fedif(monkeypatch, capsys):
    """``fedif`` in this process: its exit status, and what it prints and says of errors."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedif", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["run", "-c", "seed=[2]"], "seed = [2]: not a number, true, "),
        (["show", "{here}", "--of", "rounds"], "of = 'rounds'; allowed: with --picture"),
        (["report", "{here}/x"], "'{here}/x' is no directory"),
        (["report", "--docs", "{here}"], "docs = '{here}'; allowed: "),
        (["keeper", "--policy", "{here}/none.toml"], "{here}/none.toml: "),
        (["federation", "status", "--in", "{here}/" + 300 * "x"], f"[Errno {ENAMETOOLONG}]"),
        (["node", "start", "--in", "{here}"], "{here} has no node.toml"),
        (["keeper", "log", "/dev/null"], "/dev/null cannot be read"),
        (["keeper", "log", "{here}/\x1b[2J\nno"], "{here}/?[2J?no cannot be read"),
        (
            ["audit", "-c", "fraction-train=0.5"],
            "fraction-train = 0.5; allowed: 1.0, as an audit d",
        ),
        (
            ["audit", "-c", "attack='ipm'"],
            "attack = 'ipm'; allowed: 'none', as an audit",
        ),
        (["arena", "--shares", 2], "shares = '2'; allowed: numbers above 0 and below 1"),
    ],
)
def test_an_error_is_one_line_without_a_traceback(fedif, tmp_path, words, error):
    status, out, said = fedif(*(str(word).format(here=tmp_path) for word in words))
    assert (status, out) == (1, "")
    assert said.startswith(f"error: {error.format(here=tmp_path)}")
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rounds", "summary", "words"),
    [
        ("x,y\n1,2\n", '{"x": 1}', "{here} holds no run that can be read"),
        ("x,y\n1,2\n", "", "the tables of {here} cannot be read"),
        ("round,status\n1,fine\n", '{"config": {}}', "{here} holds no run that can be read"),
    ],
)
def test_what_another_program_wrote_is_shown_as_no_run(fedif, tmp_path, rounds, summary, words):
    (tmp_path / "rounds.csv").write_text(rounds)
    if summary:
        (tmp_path / "summary.json").write_text(summary)
    status, _, said = fedif("show", tmp_path)
    assert status == 1
    assert said.startswith(f"error: {words.format(here=tmp_path)}: KeyError(")


def test_of_a_key_in_two_options_the_later_counts():
    assert parse_config(["seed=1 num-clients=3", "seed=2"], {}).seed == 2
    with pytest.raises(ConfigError, match="seed = 2: the key is given twice"):
        parse_config(["seed=1 seed=2"], {})


def test_it_says_which_version_it_is(fedif):
    assert fedif("--version") == (0, f"fedif-flower {version('fedif-flower')}\n", "")


def test_a_keeper_s_log_is_shown_and_checked(fedif, tmp_path):
    file, lines = tmp_path / "log.txt", []
    log = ChainedLog(write=lines.append)
    log.append({"asked": "open", "run": 1, "members": ["[bold]ada"]})
    file.write_text("\n".join([*lines, ""]))
    _, shown, whole = fedif("keeper", "log", file)
    assert json.loads(shown)["members"] == ["[bold]ada"]
    assert whole == f"Whole: 1 lines, the last hash is {log.head}\n"
    file.write_text(file.read_text().replace("ada", "eve"))
    status, _, damaged = fedif("keeper", "log", file)
    assert status == 1
    assert damaged.startswith(f"error: line 1 of {file} does not follow")


def test_ctrl_c_while_the_command_is_imported_is_no_traceback(monkeypatch, capsys):
    """Importing takes a second, in which somebody may think better of it."""

    class Importing(ModuleType):
        def __getattr__(self, name: str):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "fedif_studies.commands", Importing("commands"))
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped\n"


def test_held_out_data_are_checked_without_a_run(fedif, tmp_path):
    suspects = tmp_path / "suspects.csv"
    status, said, _ = fedif("validation", "check", "-c", 'dataset="digits"', "--out", suspects)
    assert status == 0
    assert said.startswith("120 examples: ")
    assert "of the held-out labels" in said
    assert "accuracy on examples that were not trained on: " in said
    assert suspects.read_text().startswith("index,given,likely,probability\n")


def test_a_log_format_that_is_none_is_a_line_and_no_traceback(monkeypatch, capsys):
    monkeypatch.setenv("FEDIF_LOG_FORMAT", "xml")
    monkeypatch.setattr("sys.argv", ["fedif", "list"])
    with pytest.raises(SystemExit) as ended:
        library_main()
    assert ended.value.code
    assert capsys.readouterr().err.startswith("error: FEDIF_LOG_FORMAT = 'xml'; allowed: text")


def test_the_listing_names_server_optimizers():
    titles = [table.title for table in listing()]
    assert 'server-optimizer="..."' in titles
