"""Calling a constructor with the arguments that it names (see :mod:`fedif_flower.constructors`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from fedif_flower.constructors import (
    Maker,
    direct_settings,
    makers_of_parts,
    required_by_bases,
    signature_of,
    takes_any_keyword,
    unbound,
)
from fedif_flower.errors import ConfigError

_T = TypeVar("_T")


def make(
    what: str,
    maker: Callable[..., _T],
    offered: Mapping[str, Any],
    settings: Mapping[str, Any] = MappingProxyType({}),
    rest: Mapping[str, Any] = MappingProxyType({}),
) -> _T:
    """Call a class or function with the arguments that it names, and return the result.

    Parameters
    ----------
    what : str
        The name of the class or function in errors.
    maker : callable
        The class or function. Arguments that are objects with settings of their own (``made_of``)
        are made first.
    offered : mapping
        Arguments by name. It gets those for which it has a parameter.
    settings : mapping
        The values of its settings, and of the settings of the objects that it is made of. Settings
        that are not given keep their defaults.
    rest : mapping
        More offered arguments. It gets all of them if it takes ``**keywords``.

    Raises
    ------
    ConfigError
        If it, or its base class, needs an argument that is not offered.
    """
    function, bound = unbound(maker)
    makers = makers_of_parts(function)
    parameters = signature_of(function).parameters.values()
    available = {**offered, **rest}
    own_settings = direct_settings(function, frozenset(available))
    keywords: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.name
        if name in bound or not _takes_keyword(parameter):
            continue
        if name in makers:
            part_maker = makers[name]
            if part_maker is not None:  # None: the argument keeps its default.
                keywords[name] = make(what, part_maker, offered, settings, rest)
        elif name in settings and name in own_settings:
            keywords[name] = settings[name]
        elif name in available:
            keywords[name] = available[name]
        elif parameter.default is parameter.empty:
            raise _missing(what, name, available)
    if takes_any_keyword(parameters):
        keywords = {**rest, **keywords}
    try:
        return maker(**keywords)
    except TypeError as error:
        argument = _argument_not_handed_on(function, error)
        if argument is None:
            raise
        raise ConfigError(
            f"{what}: its base class needs {argument!r}: name the argument in your constructor, "
            "and hand it on"
        ) from error


def require_offered(what: str, maker: Callable[..., Any], offered: Collection[str]) -> None:
    """Raise ConfigError if a class or function needs an argument that it cannot be given.

    Parameters
    ----------
    what : str
        The name of the class or function in errors.
    maker : callable
        The class or function, which is not called.
    offered : collection of str
        The names of all arguments that may be offered, beside its settings.
    """
    function, bound = unbound(maker)
    makers = makers_of_parts(function)
    settings = direct_settings(function, frozenset(offered))
    for parameter in signature_of(function).parameters.values():
        name = parameter.name
        if name in bound or name in settings or not _takes_keyword(parameter):
            continue
        if name in makers:
            part_maker = makers[name]
            if part_maker is not None:
                require_offered(what, part_maker, offered)
        elif name not in offered and parameter.default is parameter.empty:
            raise _missing(what, name, offered)


def _missing(what: str, name: str, offered: Iterable[str]) -> ConfigError:
    """Return the error for an argument that is needed and not offered."""
    names = ", ".join(offered) or "none"
    return ConfigError(
        f"{what} needs the argument {name!r}, which nobody provides; provided: {names}"
    )


def _takes_keyword(parameter: inspect.Parameter) -> bool:
    """Return whether an argument can be passed by its name."""
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _argument_not_handed_on(maker: Maker, error: TypeError) -> str | None:
    """Return the argument of a base class whose absence caused a TypeError; ``None``: none."""
    if not isinstance(maker, type):
        return None
    for name in required_by_bases(maker):
        if repr(name) in str(error):
            return name
    return None
