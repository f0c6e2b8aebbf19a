"""Tasks, attacks and strategies by name: built in, installed by a package, or ``module:object``.

This is the one place that turns a name into code. An entry point belongs to a package that somebody
installed on this machine. But ``module:object`` imports any module, so a client accepts it only for
packages that its operator allows (:mod:`fedif_flower.client.trust`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from inspect import isroutine, signature
from types import MappingProxyType
from typing import Any, TypeGuard

from fedif_flower.errors import ConfigError

# The packages from which module:object may be imported; None: from all. It is set while the
# settings of somebody else's run are used.
_IMPORTABLE: ContextVar[Collection[str] | None] = ContextVar("importable", default=None)
# Whether a client runs at this moment in the same process as its server.
IN_PROCESS: ContextVar[bool] = ContextVar("in_process", default=False)


logger = logging.getLogger(__name__)


def parts_named(name: str) -> Sequence[Any] | None:
    """Return what ``module:function`` returns: the parts of a run, or of a client.

    ``None`` if the name is empty, or if its package is not installed.

    Raises
    ------
    ImportError, AttributeError
        If the package is installed, but the function cannot be imported.
    """
    if not name:
        return None
    package = package_of(name)
    try:
        function: Callable[[], Sequence[Any]] = EntryPoint("", name, "").load()
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        logger.info("%s is not installed: only the library's own parts are used", package)
        return None
    return function()


class Registry(Mapping[str, Callable[..., Any]]):
    """The classes and functions that a key of the run config can name, its *makers*.

    Iterating yields the built-in names and those of entry points. ``in`` is true for
    ``module:object`` as well, without importing it.

    Parameters
    ----------
    kind : str
        The field of the run config, such as ``"local_method"``. The run-config key has hyphens
        instead, and other packages install theirs in the group of entry points
        ``fedif_flower.local_methods``.
    built_in : mapping
        The built-in makers by name, each as an object or as the ``module:object`` to import.
    offered : collection of str
        The names of the arguments that every maker may take beside its settings (see
        :mod:`fedif_flower.constructors`).
    auto : mapping
        Settings of built-in makers that are ``"auto"`` by default in a run config, by key, with
        what ``"auto"`` stands for in words. A part of the run decides on the value.
    brought : str
        The prefix of names for what an app brings along itself; empty: apps bring nothing.
    makes : tuple of type
        The types of which makers make an instance. It is checked for classes; what a function
        returns is not known before it is called.
    """

    also = "module:object"  # What messages on allowed names list beside the names.

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, Callable[..., Any] | str],
        offered: Collection[str] = (),
        auto: Mapping[str, str] = MappingProxyType({}),
        brought: str = "",
        makes: tuple[type, ...] = (object,),
    ) -> None:
        self.kind = kind
        self.key = kind.replace("_", "-")
        self.group = f"fedif_flower.{_plural(kind)}"
        self.built_in = built_in
        self.offered = frozenset(offered)
        self.auto = auto
        self.brought = brought
        self.makes = makes

    def __getitem__(self, name: str) -> Callable[..., Any]:
        maker = self.built_in.get(name)
        if maker is None:
            return self.load(name)
        if isinstance(maker, str):
            path = maker
            maker = _load(name, path)
        return maker

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.built_in, *_installed(self.group)]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        is_brought = bool(self.brought) and str(name).startswith(self.brought)
        return name in self.built_in or self.is_own(name) or is_brought

    def is_own(self, name: object) -> bool:
        """Return whether a name stands for an object of another package."""
        return name not in self.built_in and (name in _installed(self.group) or is_import(name))

    def path_of(self, name: str) -> str:
        """Return the ``module:object`` of a name from another package; empty: it is built in."""
        if not self.is_own(name):
            return ""
        installed = _installed(self.group)
        if name not in installed:
            return name
        return installed[name][0].value

    def load(self, name: str) -> Callable[..., Any]:
        """Return the class or function of another package that a name stands for.

        If the name stands for any other object, a function is returned that returns the object.

        Raises
        ------
        ConfigError
            If the name stands for nothing or for several objects, or the object cannot be imported
            or does not make what the key is about.
        """
        self.require_one(name)
        installed = _installed(self.group)
        if name in installed:
            path = installed[name][0].value
        elif is_import(name):
            self._require_importable(name)
            path = name
        else:
            raise ConfigError(
                f"{self.key} = {name!r}: neither built in ({', '.join(self.built_in)}) nor an "
                f"entry point in the group {self.group!r} nor module:object"
            )
        loaded = _load(f"{self.key} = {name!r}", path)
        self._require_maker(name, loaded)
        maker: Callable[..., Any] = loaded if _is_maker(loaded) else lambda: loaded
        return maker

    def require_one(self, name: str) -> None:
        """Raise ConfigError if a name stands for several objects, since one of them is meant."""
        origins = self._origins(name)
        if len(origins) > 1:
            raise ConfigError(
                f"{self.key} = {name!r} stands for several: {'; '.join(origins)}; allowed: "
                f"{self.also}, which names one of them"
            )

    def _require_maker(self, name: str, loaded: object) -> None:
        """Raise ConfigError if an object is no maker of what the key is about.

        An object that is an instance of it already will do.
        """
        subject = f"{self.key} = {name!r}"
        kinds = ", ".join(f"a {kind.__module__}.{kind.__name__}" for kind in self.makes)
        allowed = f"{kinds}, or a function that returns one"
        if isinstance(loaded, type):
            if not issubclass(loaded, self.makes):
                raise ConfigError(f"{subject} is the class {loaded.__name__}; allowed: {allowed}")
        elif not _is_maker(loaded):
            if not isinstance(loaded, self.makes):
                words = f"{subject} is of type {type(loaded).__name__}"
                raise ConfigError(f"{words}; allowed: {allowed}")
            return
        try:
            signature(loaded)
        except ValueError as error:  # Some classes and functions written in C have no signature.
            raise ConfigError(
                f"{subject}: its signature cannot be read, so its arguments are not known: "
                f"{error}; allowed: {allowed}"
            ) from error

    def _require_importable(self, name: str) -> None:
        """Raise ConfigError if the package of ``module:object`` may not be imported here."""
        allowed = _IMPORTABLE.get()
        package = package_of(name)
        if allowed is not None and package not in allowed:
            raise ConfigError(
                f"{self.key} = {name!r} imports {name.split(':')[0]!r}, which runs its code "
                f"here: --import-from {package} allows it"
            )

    def sources(self) -> dict[str, str]:
        """Return where each name comes from, in words; several places if packages share a name."""
        names = [*_installed(self.group), *self.built_in]
        return {name: "; ".join(self._origins(name)) for name in names}

    def _origins(self, name: str) -> list[str]:
        """Return all places that a name comes from: this package, and packages installed here."""
        origins = []
        if name in self.built_in:
            origins.append("built in")
        origins += [_origin(point) for point in _installed(self.group).get(name, ())]
        return origins


@contextmanager
def importing_only(packages: Collection[str]) -> Iterator[None]:
    """Let ``module:object`` import from these packages only, within the context."""
    token = _IMPORTABLE.set(packages)
    try:
        yield
    finally:
        _IMPORTABLE.reset(token)


def package_of(name: str) -> str:
    """Return the top-level package of ``module:object``."""
    return name.split(":")[0].split(".")[0]


def is_import(name: object) -> bool:
    """Return whether a name has the form ``module:object``."""
    if not isinstance(name, str) or name.count(":") != 1:
        return False
    # Either half may have dots: ``package.module:Class.method``.
    return all(part.isidentifier() for part in re.split(r"[:.]", name))


@cache
def _installed(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name; several packages may use the same name."""
    by_name: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        by_name.setdefault(point.name, []).append(point)
    return by_name


def _origin(point: EntryPoint) -> str:
    """Return the package, its version and the object of an entry point, in words."""
    if point.dist is None:
        return f"installed: {point.value}"
    return f"{point.dist.name} {point.dist.version}: {point.value}"


def _plural(kind: str) -> str:
    """Return the plural of a field's name: ``strategies``, ``attacks``."""
    if kind.endswith("y"):
        return f"{kind.removesuffix('y')}ies"
    return f"{kind}s"


def _is_maker(loaded: object) -> TypeGuard[Callable[..., Any]]:
    """Return whether an object is a class or function, which is called to make what a key names.

    An instance may be callable, as every rule is, but it is no maker: it is what the key names.
    """
    return isinstance(loaded, type | partial) or isroutine(loaded)


def _load(subject: str, path: str) -> Any:
    """Import ``module:object``; turn any error into a ConfigError of one sentence."""
    try:
        return EntryPoint("", path, "").load()
    except Exception as error:
        words = f"{subject}: cannot import {path!r}: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == package_of(path):
            words += (
                "; is its package installed here? A file is found in the folders that PYTHONPATH "
                "names"
            )
        raise ConfigError(words) from error
