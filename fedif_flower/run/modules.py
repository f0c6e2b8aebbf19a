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
_INSTALLED = ("site-packages", "dist-packages")


def modules_of(
    config: RunConfig, task: Task | None = None, parts: Sequence[object] = ()
) -> dict[str, str]:
    """Return the SHA-256 of every module beside this package that a run executes, by its name.

    It is empty for a module that is no file, such as a notebook's.

    Parameters
    ----------
    config : RunConfig
        Its names are those of tasks, strategies, attacks ..., and values like ``module:object``.
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
        if path := registry.path_of(name):
            registry.load(name)
            roots.append(_module(path))
    roots += (_module(str(value)) for value in config.to_mapping().values() if is_import(value))
    roots += (_home(part) for part in parts)
    return _followed([*roots, *_own_homes(_functions(task))])


def modules_behind(things: Iterable[object]) -> dict[str, str]:
    """Return :func:`modules_of` functions and objects that an app of one's own has made."""
    return _followed(_own_homes(things))


def hashes_here(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of modules as they are found here; empty where there is no such file."""
    return {name: _hash(_file_of(name)) for name in names}


def _followed(roots: Sequence[str]) -> dict[str, str]:
    """Return the hashes of modules, of their packages, and of what these import."""
    followed = {package_of(name): True for name in roots} | {OURS: False}
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        package = package_of(name)
        if package not in followed:
            followed[package] = not _is_installed(package)
        if name in found or not followed[package]:
            continue
        path = _file_of(name)
        if path is not None:
            found[name] = _hash(path)
            waiting += _packages_around(name)
            waiting += _imported(name, path)
        elif name in roots:
            found[name] = ""
    return dict(sorted(found.items()))


def _module(path: str) -> str:
    """Return the module of ``module:object``."""
    return path.partition(":")[0]


def _home(thing: Any) -> str:
    """Return the module that has a function, a class, or an object's class."""
    while isinstance(thing, partial):
        thing = thing.func
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def _own_homes(things: Iterable[object]) -> list[str]:
    """Return the modules of things; not those of others, as of a loss function of PyTorch's."""
    homes = dict.fromkeys(_home(thing) for thing in things)
    return [name for name in homes if not _is_installed(package_of(name))]


def _functions(task: Task | None) -> Iterator[Callable[..., Any]]:
    """Yield what an app's own task calls."""
    for field in () if task is None else fields(task):
        value = getattr(task, field.name)
        if callable(value):
            yield value
        elif field.name == "metrics":
            yield from (one.function for one in value if isinstance(one, Metric))


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
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return any(name in _INSTALLED for place in places for name in Path(place).parts)


def _file_of(name: str) -> Path | None:
    """Return where a module's code lies; ``None``: in no file, or nowhere."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None:
        spec = _spec_of(name)
        file = spec.origin if spec is not None and spec.has_location else None
    path = Path(file).resolve() if file else None
    return path if path is not None and path.is_file() else None


def _spec_of(name: str) -> ModuleSpec | None:
    """Return where a module would be imported from; nothing is imported for it."""
    known = getattr(sys.modules.get(name), "__spec__", None)
    if known is not None:
        return known  # type: ignore[no-any-return]
    package, _, _ = name.rpartition(".")
    places = None
    if package:
        around = _spec_of(package)
        places = around.submodule_search_locations if around is not None else None
        if places is None:
            return None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None:
            continue
        with suppress(ImportError, KeyError):  # Of a package that is not imported.
            found: ModuleSpec | None = find(name, places)
            if found is not None:
                return found
    return None


def _hash(path: Path | None) -> str:
    return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _imported(name: str, path: Path) -> tuple[str, ...]:
    """Return all that may be a module in what a file imports, wherever in it."""
    if path.suffix != ".py":
        return ()
    is_package = path.stem == "__init__"
    package = name if is_package else name.rpartition(".")[0]
    return _imports_in(path.read_bytes(), package)


@lru_cache(maxsize=1024)
def _imports_in(source: bytes, package: str) -> tuple[str, ...]:
    found: list[str] = []
    try:
        tree = ast.parse(source)
    except SyntaxError:  # It was edited since it was imported.
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += [alias.name, *_packages_around(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            home = _from(node, package)
            found += [home, *_packages_around(home), *(f"{home}.{a.name}" for a in node.names)]
    return tuple(dict.fromkeys(name for name in found if name.strip(".")))


def _from(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of what ``from ... import`` names."""
    own = node.module or ""
    if not node.level:
        return own
    parts = package.split(".")
    around = parts[: len(parts) - node.level + 1]
    return ".".join([*around, own] if own else around)
