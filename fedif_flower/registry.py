"""Tasks, attacks and strategies by name: built in, installed by a package, or ``module:object``.

This is the one place that turns a name into code. An entry point comes from a package that
somebody installed here; ``module:object`` imports whatever module it names, so that a client
accepts it only from packages that its operator allows (:mod:`fedif_flower.client.trust`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from fedif_flower.errors import ConfigError

T = TypeVar("T")

# Set while a client runs in the process of whoever started its server.
IN_PROCESS: ContextVar[bool] = ContextVar("in_process", default=False)


@dataclass(frozen=True)
class Found:
    """A name, and where it comes from."""

    kind: str
    name: str
    source: str


class Registry(Mapping[str, T], Generic[T]):
    """What a key of the run config can name.

    Iterating yields the built-in names and those of entry points; ``in`` accepts
    ``module:object`` as well, without importing it.

    Parameters
    ----------
    kind : str
        The key, ``"attack"``; packages install theirs in the group ``fedif_flower.attacks``.
    built_in : mapping
        By name.
    adapt : callable
        ``adapt(name, object)`` turns what a package brings into what the mapping holds, and raises
        ConfigError if it cannot.
    """

    also = "module:object"  # For lists of what is allowed.

    def __init__(
        self, kind: str, built_in: Mapping[str, T], adapt: Callable[[str, Any], T]
    ) -> None:
        self.kind = kind
        self.group = f"fedif_flower.{kind[:-1] + 'ies' if kind.endswith('y') else kind + 's'}"
        self._built_in = built_in
        self._adapt = adapt

    def __getitem__(self, name: str) -> T:
        return (
            self._built_in[name] if name in self._built_in else self._adapt(name, self.load(name))
        )

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._built_in, *_installed(self.group)]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in _installed(self.group) or is_import(name)

    def is_own(self, name: str) -> bool:
        """Return whether a name stands for something of another package."""
        return name in self and name not in self._built_in

    def load(self, name: str) -> Any:
        """Return the object that a name outside of this package stands for.

        Raises
        ------
        ConfigError
            Saying what was tried.
        """
        installed = _installed(self.group)
        if name in installed:
            return _load(f"{self.kind} = {name!r}", installed[name].value)
        if is_import(name):
            return _load(f"{self.kind} = {name!r}", name)
        raise ConfigError(
            f"{self.kind} = {name!r}: neither built in ({', '.join(self._built_in)}) nor an entry "
            f"point in the group {self.group!r} nor module:object"
        )

    def found(self) -> list[Found]:
        """Return every name with where it comes from."""
        built_in = [Found(self.kind, name, "built in") for name in self._built_in]
        return built_in + [
            Found(self.kind, name, f"{_origin(point)}: {point.value}")
            for name, point in _installed(self.group).items()
            if name not in self._built_in
        ]


def is_import(name: object) -> bool:
    """Return whether a name has the form ``module:object``."""
    if not isinstance(name, str) or name.count(":") != 1:
        return False
    return all(part.isidentifier() for half in name.split(":") for part in half.split("."))


def call_with(
    what: str,
    function: Callable[..., T],
    offered: Mapping[str, Any],
    rest: Mapping[str, Any] = MappingProxyType({}),
) -> T:
    """Call a function or class with those of the offered arguments that it names.

    Parameters
    ----------
    what : str
        What is called, for errors.
    function : callable
        The function.
    offered : mapping
        Arguments that it gets if it has a parameter of that name.
    rest : mapping
        Likewise; and all of them if it takes any keyword.

    Raises
    ------
    ConfigError
        If it needs an argument that is not offered.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = {**offered, **rest}
    for parameter in by_name:
        if parameter.default is parameter.empty and parameter.name not in known:
            raise ConfigError(
                f"{what} needs the argument {parameter.name!r}; it can have {', '.join(known)}"
            )
    given = {p.name: known[p.name] for p in by_name if p.name in known}
    return function(**({**rest, **given} if takes_any else given))


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "installed"


def _load(what: str, path: str) -> Any:
    """Import ``module:object``; whatever goes wrong is one sentence."""
    module_name, _, attributes = path.partition(":")
    try:
        found: Any = import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"{what}: cannot import {module_name!r}: {type(error).__name__}: {error}; is its "
            "package installed here?"
        ) from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise ConfigError(f"{what}: {module_name!r} is there, but has no {attributes!r}")
        found = getattr(found, attribute)
    return found
