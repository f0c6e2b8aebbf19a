"""What is declared in pyproject.toml is what the code needs, and what nodes get is no more."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from fedif_consortium import extra as extra_of_consortium
from fedif_consortium.parts import server_parts
from fedif_flower.run import provenance
from fedif_flower.run.config import RunConfig
from fedif_flower.run.outside_code import modules_of
from fedif_flower.run.provenance import package_hash

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "fedif_flower"
PACKAGES = (PACKAGE, PROJECT / "fedif_consortium", PROJECT / "fedif_studies")
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return every module that a file imports, wherever in it; of ``from a import b``, ``a.b``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def canonical(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_by(*packages: Path) -> set[str]:
    """Return the distributions that files of packages import, as package indexes compare names."""
    files = [path for package in packages for path in package.rglob("*.py")]
    files = [path for path in files if "benchmarks" not in path.parts]  # In no wheel.
    tops = {name.split(".")[0] for path in files for name in imports(path)}
    # An example is in the checkout only, and one study is about it.
    here = {"quickstart", "time_series", *(package.name for package in PACKAGES)}
    outside = tops - set(sys.stdlib_module_names) - here
    # Ray comes with flwr[simulation], in the version that Flower wants.
    return {distribution_of(top) for top in outside - {"ray"}}


def distribution_of(module: str) -> str:
    """Return the distribution that brings a module."""
    return canonical(packages_distributions()[module][0])


def names(dependencies: list[str]) -> set[str]:
    """Return the distributions that requirements name."""
    return {canonical(re.split(r"[\[<>=~! ]", dependency)[0]) for dependency in dependencies}


def test_what_is_installed_is_what_library_and_studies_import_and_no_more():
    needed = imported_by(PACKAGE, PROJECT / "fedif_studies")
    pandas = names(DECLARED["optional-dependencies"]["pandas"])
    assert pandas <= needed
    # click is typer's; which one is said here.
    needed |= {"click"}
    assert needed - pandas == names(DECLARED["dependencies"]), "see dependencies in pyproject.toml"


def test_the_extra_is_what_the_consortium_imports_beside_it():
    extra = names(DECLARED["optional-dependencies"]["consortium"])
    needed = imported_by(PROJECT / "fedif_consortium")
    beside = needed - names(DECLARED["dependencies"])
    assert beside == extra, "see optional-dependencies in pyproject.toml"
    modules = {distribution_of(module) for module in extra_of_consortium.MODULES}
    assert modules == extra, "see MODULES in fedif_consortium/extra.py"


def test_an_example_that_makes_a_statement_installs_what_it_needs():
    with_statement = []
    for folder in (path.parent for path in sorted((PROJECT / "examples").glob("*/pyproject.toml"))):
        texts = [path.read_text() for path in (folder / "README.md", *folder.rglob("*.py"))]
        if any("fedif statement" in text or "fedif_consortium.statement" in text for text in texts):
            with_statement.append(folder.name)
            project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            assert "fedif-flower[consortium]" in project["dependencies"], folder.name
    assert with_statement == ["hospitals", "language-model"]


def test_no_module_of_one_operating_system_is_imported():
    files = [path for package in PACKAGES[:2] for path in package.rglob("*.py")]
    everywhere = {name.split(".")[0] for path in files for name in imports(path)}
    assert not everywhere & {"fcntl", "grp", "msvcrt", "pwd", "resource", "termios", "winreg"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The bundle that `flwr build` makes for the server and the nodes, as they unpack it."""
    folder = tmp_path_factory.mktemp("bundle")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(PROJECT))) as fab:
        fab.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(unpacked) -> set[str]:
    """Its files."""
    return {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}


def test_a_server_s_hash_of_the_code_is_a_checkout_s_and_covers_all_it_got(unpacked, monkeypatch):
    """What provenance leaves out is what the bundle leaves out, and nothing else."""
    checkout = package_hash.__wrapped__()
    monkeypatch.setattr(provenance, "PACKAGE", unpacked / "fedif_flower")
    assert package_hash.__wrapped__() == checkout
    monkeypatch.setattr(provenance, "_NOT_IN_BUNDLES", ())
    assert package_hash.__wrapped__() == checkout


def test_modules_that_a_server_s_run_is_hashed_with_are_all_in_the_bundle(bundle):
    paths = [name.replace(".", "/") for name in modules_of(RunConfig(), parts=server_parts())]
    assert "fedif_consortium/statement/part" in paths
    assert [path for path in paths if not {f"{path}.py", f"{path}/__init__.py"} & bundle] == []


def test_the_bundle_holds_the_two_apps_and_the_rooms_they_use(bundle):
    own = {name for name in bundle if not name.startswith(("fedif_flower/", "fedif_consortium/"))}
    apps = {"client_app.py", "server_app.py"}
    assert own == apps | {".info/CONTENT", "LICENSE", "README.md", "pyproject.toml"}
    rooms = {name.split("/")[1] for name in bundle - own if name.count("/") > 1}
    folders = [path for package in PACKAGES[:2] for path in package.iterdir() if path.is_dir()]
    left_out = {folder.name for folder in folders} - rooms - {"__pycache__"}
    expected = {"commands", "federation", "member", "runtime", "superlink", "template"}
    assert left_out == expected, "see fab-include and fab-exclude in pyproject.toml"


def test_the_bundle_keeps_the_rules_of_flower_hub():
    app = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    metadata = normalize_and_validate_fab_format(app)
    assert metadata.fab_format_version == 1
    assert (metadata.flwr_version_min, metadata.flwr_version_target) == ("1.41", "1.41.0")


def test_nothing_in_the_bundle_imports_what_is_not_in_it(bundle):
    missing = {
        (name, module)
        for name in bundle
        if name.endswith(".py")
        for module in imports(PROJECT / name)
        if module.split(".")[0] in ("fedif_flower", "fedif_consortium")
        and not is_in(bundle, module)
    }
    assert not missing, "see fab-exclude in pyproject.toml"


def is_in(bundle: set[str], module: str) -> bool:
    """Return whether a module, or the module that a name is imported from, is in the bundle."""
    path = module.replace(".", "/")
    candidates = (f"{path}.py", f"{path}/__init__.py", f"{path.rpartition('/')[0]}.py")
    parent = f"{path.rpartition('/')[0]}/__init__.py"
    if (PACKAGE.parent / path).with_suffix(".py").exists() or (PACKAGE.parent / path).is_dir():
        return bool(bundle & set(candidates[:2]))  # a module: its parent alone is not enough
    return bool(bundle & {*candidates, parent})


@pytest.mark.parametrize(
    ("before", "after", "installs"),
    [
        ("seed = 0\n", "seed = 0\nanother-setting = 1\n", False),
        ("line-length = 100\n", "line-length = 99\n", False),
        ('"filelock>=3.12",', '"filelock>=3.13",', True),
        ("packages.find]\n", "packages.find]\nnamespaces = false\n", True),
    ],
)
def test_make_installs_anew_where_that_would_change_something(before, after, installs, tmp_path):
    manifest = (PROJECT / "pyproject.toml").read_text()
    (tmp_path / "Makefile").symlink_to(PROJECT / "Makefile")
    (tmp_path / "pyproject.toml").write_text(manifest)
    assert "pip install" in steps_of_lint(tmp_path)
    for stamp in re.findall(r"touch (\S+)", steps_of_lint(tmp_path)):
        (tmp_path / stamp).parent.mkdir(exist_ok=True)
        (tmp_path / stamp).touch()
    assert "pip install" not in steps_of_lint(tmp_path)
    assert manifest.count(before) == 1
    (tmp_path / "pyproject.toml").write_text(manifest.replace(before, after))
    assert ("pip install" in steps_of_lint(tmp_path)) == installs


def steps_of_lint(folder: Path) -> str:
    """Return what `make lint` would do in a folder."""
    command = ["make", "--dry-run", "lint", "VENV=environment"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def test_public_ci_tries_each_python_and_the_oldest_and_newest_flower():
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "test.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    prefix = "Programming Language :: Python :: 3."
    pythons = [name for name in DECLARED["classifiers"] if name.startswith(prefix)]
    assert matrix["python"] == [name.rpartition(" ")[2] for name in pythons]
    assert DECLARED["requires-python"] == f">={matrix['python'][0]}"
    (flower,) = (name for name in DECLARED["dependencies"] if name.startswith("flwr["))
    oldest, beyond = re.findall(r">=1\.(\d+),<1\.(\d+)", flower)[0]
    assert matrix["flower"] == [f"1.{oldest}", f"1.{int(beyond) - 1}"]


def test_citation_and_changelog_have_the_version_of_the_package():
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert citation["version"] == DECLARED["version"], "see CITATION.cff"
    changelog = (PROJECT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## .*", changelog, flags=re.MULTILINE)
    versions = [found for heading in headings for found in re.findall(r"\d+\.\d+\.\d+", heading)]
    assert versions[0] == DECLARED["version"], "see the headings of CHANGELOG.md"
