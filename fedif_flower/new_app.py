"""``fedif new``: writes a Flower app for a task of your own, which runs as it is."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from fedif_flower.errors import ConfigError, require
from fedif_flower.storage import make_folder, temporary_sibling, write_atomically, writing

# The kinds of tasks that a new app can have; template/<name>.py.tmpl has the task of each.
KINDS = {
    "tabular": "rows of numbers, sorted into classes",
    "images": "pictures, sorted into classes",
}
DEFAULT = "tabular"

# Packages that an app imports. Their names are taken even if they are not installed here.
_IMPORTED = {"fedif_consortium", "pytest"}
# Names of folders that an app may have beside its package: tests, and what Flower does not send.
_NO_PACKAGES = {"build", "env", "lib", "lib64", "tests", "venv"}

# The files of an app, each with its template.
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "{package}/__init__.py": "__init__.py",
    "{package}/task.py": "{kind}.py",
    "{package}/server_app.py": "server_app.py",
    "{package}/client_app.py": "client_app.py",
    "tests/test_task.py": "test_task.py",
}


def write_app(folder: Path, kind: str = DEFAULT) -> list[Path]:
    """Write a Flower app whose task is to be filled in, and return its files.

    If an error occurs, nothing is written.

    Parameters
    ----------
    folder : Path
        The app's folder; its name becomes the name of the app and of its package.
    kind : str
        The kind of its task, one of ``KINDS``.

    Raises
    ------
    ConfigError
        If the folder holds anything, if its name cannot be a package's or is taken, or if there is
        no such kind.
    StorageError
        If the folder cannot be written.
    """
    # Imported here, since `fedif --help` would wait for it.
    from fedif_flower.tasks.config import TASKS

    require(kind in KINDS, "template", kind, ", ".join(KINDS))
    folder = folder.expanduser().absolute()
    with writing(folder):  # exists() raises OSError if the name is too long.
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if is_taken:
        raise ConfigError(f"{str(folder)!r} exists already; name a folder that does not")
    package = re.sub(r"[-. ]+", "_", folder.name).lower()
    # With '-' it is the distribution's name, which has to begin and end with a letter or digit.
    if not re.fullmatch("[a-z]([a-z0-9_]*[a-z0-9])?", package) or keyword.iskeyword(package):
        raise ConfigError(
            f"{folder.name!r} cannot name a package; allowed: letters, digits and '-', beginning "
            "with a letter, and not ending with '-'"
        )
    if package in TASKS.built_in:
        raise ConfigError(
            f"{folder.name!r} cannot name a task: fedif-flower has a task {package!r}, which would "
            "run instead of yours; allowed: another name"
        )
    is_reserved = package in _IMPORTED | _NO_PACKAGES | sys.stdlib_module_names
    if is_reserved or _is_importable_beside(folder, package):
        raise ConfigError(
            f"{folder.name!r} cannot name a package: {package!r} is the name of a module of "
            "Python, of an installed package, or of a folder such as tests or build; allowed: "
            "another name"
        )
    names = {"package": package, "name": package.replace("_", "-"), "kind": kind}
    templates = files("fedif_flower") / "template"
    written = []
    staged = temporary_sibling(folder)
    try:
        for target_pattern, template_pattern in _FILES.items():
            target = target_pattern.format(**names)
            template = templates / f"{template_pattern.format(**names)}.tmpl"
            text = Template(template.read_text(encoding="utf-8")).substitute(names)
            make_folder((staged / target).parent)
            write_atomically(staged / target, text)
            written.append(folder / target)
        with writing(folder):
            staged.replace(folder)  # This works over an empty folder, too.
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return written


def _is_importable_beside(folder: Path, package: str) -> bool:
    """Return whether a package of this name, other than the app's own, can be imported.

    The app's package would be imported in its place, even by other packages that need it.
    """
    try:
        spec = find_spec(package)
    except ValueError:  # A module of this name is loaded, but has no spec.
        return True
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or [str(spec.origin)])
    # A package in the folder is the app's own: the empty folder itself, or an installed app that
    # was there before.
    return not all(Path(place).is_relative_to(folder) for place in places)
