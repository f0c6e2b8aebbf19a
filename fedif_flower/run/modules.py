"""The code beside this package that a run executes: its modules, and a hash of each.

They are what names of a run config, the app's own task and the parts of the run stand for, and what
these import: modules of the same package, and others that are not installed beside Python's own.
What a module finds in another way, by a name of its own making or as data, is not seen; neither is
what real nodes have in the place of the server's.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache, partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from fedif_flower.registry import is_import, package_of
from fedif_flower.run.config import RunConfig
from fedif_flower.tasks.task import Metric, Task

OURS = package_of(__name__)  # Another hash covers it.
_INSTALLED = {"site-packages", "dist-packages"}


def modules_of(
    config: RunConfig, task: Task | None = None, parts: Sequence[object] = ()
) -> dict[str, str]:
    """Return the SHA-256 of every module beside this package that a run executes, by its name.

    It is empty for a module that is no file, such as a notebook's.

    Parameters
    ----------
    config : RunConfig
        Its names are those of tasks, strategies, attacks ..., and values like ``module:object`` of
        settings on which a result depends.
    task : Task, optional
        The app's own.
    parts : sequence of RunPart
        What the run has beside its core.

    Raises
    ------
    ConfigError
        If a name cannot be imported.
    """
    roots: list[str] = []
    for field, registry in config.registries.items():
        name = getattr(config, field)
        path = registry.path_of(name)
        if path:
            registry.load(name)
            roots.append(_module(path))
    # Not the name of the run, and whatever else may have a colon and changes no result.
    imports = [str(value) for value in config.identity().values() if is_import(value)]
    roots += map(_module, imports)
    roots += map(_home, parts)
    if task is not None:
        roots += _own_homes(_functions(task))
    return _followed(roots)


def modules_behind(things: Iterable[object]) -> dict[str, str]:
    """Return the same of functions and objects that an app of a user's own has made."""
    return _followed(_own_homes(things))


def hashes_here(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of modules as they are found here; empty where there is no such file."""
    return {name: _hash(_file_of(name)) for name in names}


def _followed(roots: Sequence[str]) -> dict[str, str]:
    """Return the hashes of modules, of their packages, and of what these import."""
    # By package. What the run config names counts wherever it is installed.
    is_followed = dict.fromkeys(map(package_of, roots), True)
    is_followed[OURS] = False
    hashes: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        package = package_of(name)
        if package not in is_followed:
            is_followed[package] = not _is_installed(package)
        if name in hashes or not is_followed[package]:
            continue
        path = _file_of(name)
        if path is not None:
            hashes[name] = _hash(path)
            waiting += _packages_around(name)
            waiting += _imported(name, path)
        elif name in roots:
            hashes[name] = ""
    return dict(sorted(hashes.items()))


def _module(path: str) -> str:
    """Return the module of ``module:object``."""
    return path.partition(":")[0]


def _home(thing: Any) -> str:
    """Return the module in which a function, a class, or an object's class is."""
    while isinstance(thing, partial):
        thing = thing.func
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def _own_homes(things: Iterable[object]) -> list[str]:
    """Return the modules of things; installed ones, as PyTorch's with its losses, are left out."""
    homes = dict.fromkeys(_home(thing) for thing in things)
    return [name for name in homes if not _is_installed(package_of(name))]


def _functions(task: Task) -> Iterator[Callable[..., Any]]:
    """Yield what an app's own task calls."""
    for field in fields(task):
        value = getattr(task, field.name)
        if callable(value):
            yield value
        elif field.name == "metrics":
            for metric in value:
                if isinstance(metric, Metric):
                    yield metric.function


def _packages_around(name: str) -> list[str]:
    """Return the packages that a module lies in, whose code runs before its own."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _is_installed(package: str) -> bool:
    """Tell whether a module or package is Python's own, or lies where others are installed."""
    if package in sys.stdlib_module_names:
        return True
    spec = _spec_of(package)
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or ())
    places.append(spec.origin or "")
    return any(_INSTALLED & set(Path(place).parts) for place in places)


def _file_of(name: str) -> Path | None:
    """Return where a module's code lies; ``None``: in no file, or nowhere."""
    file = _recorded_file(name)
    if not file:
        return None
    path = Path(file).resolve()
    if not path.is_file():
        return None
    return path


def _recorded_file(name: str) -> str | None:
    """Return the file that a module was, or would be, imported from, as Python has it."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    spec = _spec_of(name)
    if spec is None or not spec.has_location:
        return None
    return spec.origin


def _spec_of(name: str) -> ModuleSpec | None:
    """Return where a module would be imported from; nothing is imported for it."""
    imported: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    if imported is not None:
        return imported
    package = name.rpartition(".")[0]
    places = None
    if package:
        package_spec = _spec_of(package)
        if package_spec is None or package_spec.submodule_search_locations is None:
            return None
        places = package_spec.submodule_search_locations
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None:
            continue
        with suppress(ImportError, KeyError):  # Of a package that is not imported.
            spec: ModuleSpec | None = find(name, places)
            if spec is not None:
                return spec
    return None


def _hash(path: Path | None) -> str:
    """Return the SHA-256 of a file; empty where there is none."""
    if path is None:
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _imported(name: str, path: Path) -> tuple[str, ...]:
    """Return all that may be a module in what a file imports, wherever in it."""
    if path.suffix != ".py":
        return ()
    package = name
    if path.stem != "__init__":
        package = name.rpartition(".")[0]
    return _imports_in(path.read_bytes(), package)


@lru_cache(maxsize=1024)
def _imports_in(source: bytes, package: str) -> tuple[str, ...]:
    """Return all that may be a module in what a source imports; ``package`` is its package."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # It was edited since it was imported.
        return ()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.append(alias.name)
                names += _packages_around(alias.name)
        elif isinstance(node, ast.ImportFrom):
            home = _from(node, package)
            names.append(home)
            names += _packages_around(home)
            # What is imported from a package may be a module of it.
            names += [f"{home}.{alias.name}" for alias in node.names]
    # Relative imports beyond the outermost package leave nothing but dots.
    return tuple(dict.fromkeys(name for name in names if name.strip(".")))


def _from(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of what ``from ... import`` names."""
    module = node.module or ""
    if not node.level:
        return module
    # One dot is the package itself, and each further dot one package up.
    packages = package.split(".")
    parts = packages[: len(packages) - node.level + 1]
    if module:
        parts.append(module)
    return ".".join(parts)
