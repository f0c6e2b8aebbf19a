"""``fedif new``: a Flower app of one's own, which runs as it is."""

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

# What a new app's task is about; each has its task in template/, as <name>.py.tmpl.
KINDS = {
    "tabular": "rows of numbers, sorted into classes",
    "images": "pictures, sorted into classes",
}
DEFAULT = "tabular"

# Packages that an app imports though they need not be installed where it is written.
_IMPORTED = {"fedif_consortium", "pytest"}
# Folders of an app that are no package of it: its tests, and what Flower sends no node.
_NO_PACKAGES = {"build", "env", "lib", "lib64", "tests", "venv"}

# What is written, and the template that it comes from.
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
    """Write a Flower app whose task is to be filled in, and return its files: all, or none.

    Parameters
    ----------
    folder : Path
        Where to; its name becomes the app's, and that of its package.
    kind : str
        What its task is about, of ``KINDS``.

    Raises
    ------
    ConfigError
        If the folder holds anything, its name cannot be a package's, or there is no such kind.
    StorageError
        If it cannot be written.
    """
    # Imported here: `fedif --help` would wait for it.
    from fedif_flower.tasks.config import TASKS

    require(kind in KINDS, "template", kind, ", ".join(KINDS))
    folder = folder.expanduser().absolute()
    with writing(folder):  # Its name may be too long to ask for.
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if is_taken:
        raise ConfigError(f"{str(folder)!r} exists already; name a folder that does not")
    package = re.sub(r"[-. ]+", "_", folder.name).lower()
    # Its name with '-' is the distribution's, which begins and ends with a letter or digit.
    if not re.fullmatch("[a-z]([a-z0-9_]*[a-z0-9])?", package) or keyword.iskeyword(package):
        raise ConfigError(
            f"{folder.name!r} cannot name a package; allowed: letters, digits and '-', beginning "
            "with a letter, and not ending with '-'"
        )
    if package in TASKS.built_in:
        raise ConfigError(
            f"{folder.name!r} cannot name a task: {package!r} is built in, and would be run in its "
            "place; allowed: another name"
        )
    is_reserved = package in _IMPORTED | _NO_PACKAGES | sys.stdlib_module_names
    if is_reserved or _is_importable_beside(folder, package):
        raise ConfigError(
            f"{folder.name!r} cannot name a package: {package} is taken, by Python, by a package "
            "that is installed here, or by a folder that is none; allowed: another name"
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
            staged.replace(folder)  # Also over an empty folder.
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return written


def _is_importable_beside(folder: Path, package: str) -> bool:
    """Return whether another package of the name can be imported, which may be one that apps need.

    The app's own would be imported in its place, also by those who import it within others.
    """
    try:
        spec = find_spec(package)
    except ValueError:  # It was imported, but not from any place.
        return True
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or [str(spec.origin)])
    # The folder itself may be there, empty, and so may an installed app that it had before.
    return not all(Path(place).is_relative_to(folder) for place in places)
