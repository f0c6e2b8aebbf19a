"""The code outside this package that a run executes: its modules, and a hash of each.

These modules are found by following imports. The search begins at the modules that the run config
names, and at those of the app's own task and the parts of the run. Imports lead to other modules of
the same packages, and to modules that are neither Python's own nor installed. The search does not
see what a module imports by a name that it computes, files that it reads as data, or modules of
real nodes that differ from the server's.
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

OURS = package_of(__name__)  # Not followed: provenance.package_hash covers this package.
_INSTALLED = {"site-packages", "dist-packages"}  # Folders of packages that were installed.


def modules_of(
    config: RunConfig, task: Task | None = None, parts: Sequence[object] = ()
) -> dict[str, str]:
    """Return the SHA-256 of every module outside this package that a run executes, by its name.

    The hash is empty for a module without a file, such as a notebook's.

    Parameters
    ----------
    config : RunConfig
        The run's settings, which name modules: by the names of a task, strategy, attack ..., and by
        values like ``module:object`` of settings on which a result depends.
    task : Task, optional
        The app's own task.
    parts : sequence of RunPart
        The parts of the run.

    Raises
    ------
    ConfigError
        If something that the run config names cannot be imported.
    """
    roots: list[str] = []
    for field, registry in config.registries.items():
        name = getattr(config, field)
        path = registry.path_of(name)
        if path:
            registry.load(name)
            roots.append(_module(path))
    # Of identity(), since settings that change no result, such as run-name, may have a colon too.
    imports = [str(value) for value in config.identity().values() if is_import(value)]
    roots += map(_module, imports)
    roots += map(_home, parts)
    if task is not None:
        roots += _own_homes(_functions(task))
    return _followed(roots)


def modules_behind(things: Iterable[object]) -> dict[str, str]:
    """Return the hashes of the modules behind functions and objects that a user's app has made."""
    return _followed(_own_homes(things))


def hashes_here(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of modules as this process finds them; empty if a module has no file."""
    return {name: _hash(_file_of(name)) for name in names}


def _followed(roots: Sequence[str]) -> dict[str, str]:
    """Return the hashes of modules, of the packages around them, and of all that these import."""
    # By package, whether its imports are followed. Packages of the roots are, even if installed.
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
    """Return the module in ``module:object``."""
    return path.partition(":")[0]


def _home(thing: Any) -> str:
    """Return the module that defines a function, a class, or an object's class."""
    while isinstance(thing, partial):
        thing = thing.func
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def _own_homes(things: Iterable[object]) -> list[str]:
    """Return the modules that define things; installed ones, such as PyTorch, are left out."""
    homes = dict.fromkeys(_home(thing) for thing in things)
    return [name for name in homes if not _is_installed(package_of(name))]


def _functions(task: Task) -> Iterator[Callable[..., Any]]:
    """Yield the functions that a task was given, those of its metrics included."""
    for field in fields(task):
        value = getattr(task, field.name)
        if callable(value):
            yield value
        elif field.name == "metrics":
            for metric in value:
                if isinstance(metric, Metric):
                    yield metric.function


def _packages_around(name: str) -> list[str]:
    """Return the packages around a module: their ``__init__`` is executed before the module."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _is_installed(package: str) -> bool:
    """Whether a module or package is Python's own, or lies in a folder of installed packages."""
    if package in sys.stdlib_module_names:
        return True
    spec = _spec_of(package)
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or ())
    places.append(spec.origin or "")
    return any(_INSTALLED & set(Path(place).parts) for place in places)


def _file_of(name: str) -> Path | None:
    """Return the file of a module's code; ``None``: there is no such file, or no such module."""
    file = _recorded_file(name)
    if not file:
        return None
    path = Path(file).resolve()
    if not path.is_file():
        return None
    return path


def _recorded_file(name: str) -> str | None:
    """Return the file that a module was imported from, or would be, as Python records it."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    spec = _spec_of(name)
    if spec is None or not spec.has_location:
        return None
    return spec.origin


def _spec_of(name: str) -> ModuleSpec | None:
    """Return the spec of a module, which says where it is imported from; import nothing.

    ``importlib.util.find_spec`` would import the packages around the module.
    """
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
        # A finder may look for the package in sys.modules, though it is not imported.
        with suppress(ImportError, KeyError):
            spec: ModuleSpec | None = find(name, places)
            if spec is not None:
                return spec
    return None


def _hash(path: Path | None) -> str:
    """Return the SHA-256 of a file; empty if there is no file."""
    if path is None:
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _imported(name: str, path: Path) -> tuple[str, ...]:
    """Return every name that a module's file imports and that may be a module."""
    if path.suffix != ".py":
        return ()
    package = name
    if path.stem != "__init__":
        package = name.rpartition(".")[0]
    return _imports_in(path.read_bytes(), package)


@lru_cache(maxsize=1024)
def _imports_in(source: bytes, package: str) -> tuple[str, ...]:
    """Return every name that a source imports and that may be a module.

    Imports within functions count, too. ``package`` is the package that relative imports begin
    from.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:  # The file was edited since it was imported.
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
            # A name that is imported from a package may be a module in the package.
            names += [f"{home}.{alias.name}" for alias in node.names]
    # Relative imports beyond the outermost package leave names of nothing but dots.
    return tuple(dict.fromkeys(name for name in names if name.strip(".")))


def _from(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of the module in ``from module import ...``."""
    module = node.module or ""
    if not node.level:
        return module
    # One dot is the package itself, and each further dot one package up.
    packages = package.split(".")
    parts = packages[: len(packages) - node.level + 1]
    if module:
        parts.append(module)
    return ".".join(parts)
