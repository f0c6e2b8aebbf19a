"""The documentation is true: its links resolve, its code and commands work."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import sys
import types
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

import fedif_flower
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.parts import server_parts
from fedif_flower import aggregators, attacks, stages, valuation
from fedif_flower.attacks import ATTACKS
from fedif_flower.devices import torch_threads
from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import parse_overrides
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.valuation import shapley
from fedif_studies.audit.results import FOLDERS, update_audit_page
from fedif_studies.lab.spec import read_sweep
from fedif_studies.paper.glance import CASES
from fedif_studies.paper.results_page import update_docs
from fedif_studies.rows import ORIGIN
from tests.server.hostile import Clients
from tests.test_docs_names import DOCS, REPOSITORY, blocks_of, is_there
from tests.test_docs_names import PAGES as WRITTEN
from tests.test_docs_names import page_name as _name

ROOMS = sorted(
    path
    for top in ("fedif_flower", "fedif_consortium", "fedif_studies")
    for path in (REPOSITORY / top).iterdir()
)
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
    for path in WRITTEN
    if path.name not in OTHERS and blocks_of(path.read_text(), "python")
]


@pytest.mark.parametrize("path", [*WRITTEN, REPOSITORY / "CHANGELOG.md"], ids=_name)
def test_every_link_between_files_of_the_repository_leads_somewhere(path):
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.M)
    targets = [t for t in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text) if ":" not in t]
    targets += re.findall(r'\b(?:src|srcset)="([^"]+)"', text)
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", WITH_CODE)
def test_code_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "documentation"}
    with torch_threads(1):  # small models: more threads would wait for each other
        for code in blocks_of(path.read_text(), "python"):
            exec(compile(code, str(path), "exec"), names)


def test_a_part_of_one_s_own_can_be_copied_alone():
    """A reader puts one class into a file of its own, which a run names by import string."""
    page = (DOCS / "tutorial" / "own-parts.md").read_text()
    alone = [code for code in blocks_of(page, "python") if "runtime.local_" not in code]
    assert len(alone) == 9
    for code in alone:
        exec(compile(code, "own-parts.md", "exec"), {"__name__": "documentation"})


@pytest.mark.parametrize("path", WRITTEN, ids=_name)
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


def test_every_row_says_which_revision_it_is_of():
    """Findings alone follow from others' rows, which say it; a seed may be unknown."""
    files = [*DOCS.glob("results/*.csv"), *DOCS.glob("audit/**/*.csv")]
    measured = [path for path in files if path.name != "findings.csv"]
    assert len(measured) > 60
    # Of the noise results.md says why such a run is the same; threads were noted by hand.
    filled = {"", *ORIGIN, " and ".join(ORIGIN), "validation.noise", "threads"}
    for path in measured:
        rows = read_rows(path)
        assert all(row["revision"] for row in rows), path
        assert {row.get("reconstructed", "") for row in rows} <= filled, path


def test_every_file_of_rows_is_named_by_a_page():
    """By its name, or by a pattern: rows of a sweep by that of their settings."""
    pages = "\n".join(path.read_text() for path in WRITTEN)
    patterns = set(re.findall(r"`docs/results/([^`]*\*[^`]*)`", pages)) - {"*.csv"}  # Not all.
    folder = DOCS / "results"

    def is_named(path: Path) -> bool:
        sweep = path.with_suffix(".toml")
        names = [path.name, *([sweep.name] if sweep.exists() else [])]
        return path.name in pages or any(fnmatch(n, p) for n in names for p in patterns)

    unnamed = [path.name for path in sorted(folder.glob("*.csv")) if not is_named(path)]
    assert unnamed == [], "no page quotes these files of docs/results/"


def test_the_sweeps_that_have_no_rows_are_named():
    sweeps = {path.stem for path in (DOCS / "results").glob("*.toml")}
    without = {name for name in sweeps if not (DOCS / "results" / f"{name}.csv").exists()}
    of_descent = {name for name in sweeps if name.startswith("influence-descent-")}
    assert without <= of_descent
    assert (len(without & of_descent), len(of_descent)) == (7, 10)
    text = " ".join((DOCS / "results.md").read_text().split())
    assert "Seven of the ten `influence-descent-*` have none yet." in text


def test_commands_exist():
    text = "\n".join(block for path in WRITTEN for block in blocks_of(path.read_text(), "sh"))
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
    without = [n for n in names if not any(form.format(n) in METHODS for form in forms)]
    assert without == [], f"no page of docs/methods/ says how to use this {key}"


def test_every_estimator_is_described():
    page = (DOCS / "methods" / "shapley.md").read_text()
    without = [name for name in shapley.ESTIMATORS if f"| `{name}` |" not in page]
    assert without == [], "docs/methods/shapley.md has no line of these in its table"


@pytest.mark.parametrize(
    "package",
    [fedif_flower, aggregators, attacks, stages, valuation, shapley],
)
def test_every_public_name_is_in_the_reference(package):
    shown = {line.rsplit(".", 1)[-1] for line in re.findall(r"^::: (\S+)", REFERENCE, flags=re.M)}
    missing = sorted(set(package.__all__) - shown)
    assert missing == [], f"no page of docs/reference/ has `::: {package.__name__}.NAME` of these"


@pytest.mark.parametrize("room", ROOMS, ids=_name)
def test_docstrings_refer_to_what_exists(room):
    files = room.rglob("*.py") if room.is_dir() else [room] if room.suffix == ".py" else []
    for file in files:
        assert [path for path in ROLE.findall(file.read_text()) if not is_there(path)] == [], file


def test_results_and_their_pictures_are_those_of_the_committed_rows(tmp_path):
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    for path in (DOCS / "results").glob("*"):
        if not path.name.startswith("bench-"):
            (docs / "results" / path.name).write_bytes(path.read_bytes())
    for folder in FOLDERS.values():
        shutil.copytree(DOCS / "audit" / folder, docs / "audit" / folder)
    shutil.copy(DOCS / "results.md", docs)
    shutil.copy(REPOSITORY / "README.md", tmp_path)
    page = update_docs(docs, [], RunConfig.defaults())
    assert page.read_text() == (DOCS / "results.md").read_text()
    audit_page = update_audit_page(docs)
    assert audit_page.read_text() == (DOCS / "results" / "audit.md").read_text()
    assert (tmp_path / "README.md").read_text() == README
    drawn, committed = (
        {path.name: path.read_text() for path in folder.glob("*.svg")}
        for folder in (docs / "pictures", DOCS / "pictures")
    )
    assert drawn.keys() == committed.keys()
    assert [name for name in drawn if drawn[name] != committed[name]] == []


README = (REPOSITORY / "README.md").read_text()


def percent_of(name: str, figure: str, of_case: dict[str, str]) -> float:
    """Return the mean of a figure over the three rows that have these values, in percent."""
    rows = read_rows(DOCS / "results" / name)
    fitting = [row for row in rows if of_case.items() <= row.items()]
    assert len(fitting) == 3
    return 100 * sum(float(row[figure]) for row in fitting) / 3


def of_noise(method: str, bounds: str = "") -> float:
    if bounds:
        rule = {"rule.weights": method, "rule.bounds": bounds}
        return percent_of("cifar10-label-noise-bounds.csv", "test-last-ten", rule)
    column = {"column": "label-noise_0.7_0.7-0.8", "normalization": "data", "row": method}
    return percent_of("cifar10.csv", "test-last-ten", column)


def of_arena(data: str, attack: str, rule: str, bounds: str) -> float:
    bout = {"data": data, "attack": attack, "rule": rule, "bounds": bounds}
    return percent_of("arena.csv", "accuracy", bout)


def test_what_the_readme_says_below_its_picture_is_what_the_rows_say():
    fedavg, fedif = (of_noise(method, "full") for method in ("fedavg", "fedif"))
    fedavg_without, fedif_without = (of_noise(method) for method in ("fedavg", "fedif"))
    fashion = [of_arena("Fashion-MNIST", "none", rule, "full") for rule in ("FedAvg", "FedIF")]
    cost = fashion[0] - fashion[1]
    scaled = ("CIFAR-10 (JPEG)", "scaling x10")
    fltrust, descent = (of_arena(*scaled, n, "full") for n in ("FLTrust", "influence descent"))
    text = " ".join(README.partition("<!-- end: at a glance -->")[2].split())
    assert text.startswith(
        f"With wrong labels at 70 % of CIFAR-10's clients, FedIF has {fedif:.1f} % test accuracy "
        f"with its default bounds and {fedif_without:.1f} % without, where FedAvg has "
        f"{fedavg_without:.1f} %. Much of that lead comes from the bounds, which any method can "
        f"have: FedAvg with them has {fedavg:.1f} %. Where nobody attacks, FedIF costs "
        f"{cost:.1f} points on Fashion-MNIST, and where 40 % send updates ten times too long on "
        f"CIFAR-10, all but FLTrust and influence descent with bounds ({fltrust:.1f} and "
        f"{descent:.1f} %) end below 30 %."
    )
    bout = {"data": scaled[0], "attack": scaled[1]}
    rows = [row for row in read_rows(DOCS / "results" / "arena.csv") if bout.items() <= row.items()]
    played = {(row["rule"], row["bounds"]) for row in rows}
    others = played - {("FLTrust", "full"), ("influence descent", "full")}
    assert len(others) == 6
    assert max(of_arena(*scaled, *other) for other in others) < 30


def test_the_table_at_a_glance_is_what_its_picture_is_drawn_from():
    text = (DOCS / "results.md").read_text().partition("## At a glance")[2]
    lines = re.findall(r"^\| (?:CIFAR-10|digits|Fashion-MNIST).*", text, flags=re.M)[: len(CASES)]
    columns = (("FedAvg", False), ("FedAvg", True), ("FedIF", False), ("FedIF", True))
    for line, case in zip(lines, CASES, strict=True):
        figures = case.read(DOCS / "results")
        shown = [f"{figures[bar].mean:.1f}" for bar in (*columns, ("influence descent", False))]
        assert re.findall(r"\| (\d+\.\d)", line) == shown, case


def test_library_example(tmp_path, monkeypatch, capsys):
    code, of_dictionaries = blocks_of(README, "python")
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
    exec(compile(of_dictionaries, "README.md", "exec"), namespace)
    examples = [{"img": row, "label": label} for label, row in enumerate(torch.eye(2))]
    loader = torch.utils.data.DataLoader(examples, batch_size=2)
    of = {"batch_loss": namespace["batch_loss"]}
    judged = namespace["Validation"](torch.nn.Linear(2, 2), loader, **of)
    assert judged.num_examples == 2


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/first-run.md"])
def test_flwr_run_has_what_it_needs(page):
    """Flower finds its programs on the path alone, and else installs every package again."""
    text = (REPOSITORY / page).read_text()
    for needed in ("flwr run . --stream", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"):
        assert needed in text
    assert "activate" in text
