"""``fedif new``: a Flower app of one's own, which runs as it is."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from fedif_flower.errors import ConfigError
from fedif_flower.storage import make_folder, write_atomically

# What is written, and the template that it comes from.
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "{package}/__init__.py": "__init__.py",
    "{package}/task.py": "task.py",
    "{package}/server_app.py": "server_app.py",
    "{package}/client_app.py": "client_app.py",
    "tests/test_task.py": "test_task.py",
}


def write_app(folder: Path) -> list[Path]:
    """Write a Flower app whose task is to be filled in, and return its files.

    Parameters
    ----------
    folder : Path
        Where to; its name becomes the app's, and that of its package.

    Raises
    ------
    ConfigError
        If the folder holds anything, or its name cannot be a package's.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} exists already; name a folder that does not")
    package = re.sub(r"[-. ]+", "_", folder.name).lower()
    if not package.isidentifier() or not package.isascii() or keyword.iskeyword(package):
        raise ConfigError(
            f"{folder.name!r} cannot name a package; allowed: letters, digits and '-', beginning "
            "with a letter"
        )
    names = {"package": package, "name": package.replace("_", "-")}
    templates = files("fedif_flower") / "template"
    written = []
    for target, source in _FILES.items():
        path = folder / target.format(**names)
        make_folder(path.parent)
        text = (templates / f"{source}.tmpl").read_text(encoding="utf-8")
        write_atomically(path, Template(text).substitute(names))
        written.append(path)
    return written
