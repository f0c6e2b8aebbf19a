"""What a strategy was set to: every argument of its constructor and of its bases', for the log."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError
from fedif_flower.valuation import Validation

# What some strategies need beside Flower's arguments, where a number is easily given in its place.
_KINDS: Mapping[str, type] = {"validation": Validation, "model": nn.Module}
_UNTOLD: tuple[object, ...] = (object.__repr__,)  # It shows an address and nothing else.
_Parameters = ParamSpec("_Parameters")
logger = logging.getLogger(__name__)
_SHOWN_AT_MOST = 100  # Characters of a value.


class SettingsSummary:
    """Gives a Flower strategy a :meth:`summary` of every argument its constructor takes."""

    _settings: Mapping[str, Any]  # See remembering_settings.
    _given: Mapping[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let :meth:`summary` know the arguments that a subclass adds."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = remembering_settings(cls.__init__)  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Name the class and the arguments that it was called with."""
        given = (f"{name}={shown_setting(value)}" for name, value in self._given.items())
        return f"{type(self).__name__}({', '.join(given)})"

    def summary(self) -> None:
        """Log every setting, as Flower's strategies do."""
        logger.info("\t└──> Settings:")
        for name, given in self._settings.items():
            # Some are settled by the constructor: "auto" for example.
            logger.info("\t\t├── %s = %s", name, shown_setting(vars(self).get(name, given)))


def given_settings(
    kind: type, positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the value of every argument that ``kind`` takes, given or its default, by name.

    Parameters
    ----------
    kind : type
        A class; where its constructor takes ``**others``, they are those of its base.
    positional, named
        What the constructor was called with.
    """
    settings: dict[str, Any] = {}
    left = list(positional)
    for cls in kind.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
        last = not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            value = named.get(parameter.name, parameter.default)
            # Positional arguments that the outermost class does not name belong to the last one.
            takes = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and (cls is kind or last)
            if takes and left and parameter.name not in named:
                value = left.pop(0)
            settings.setdefault(parameter.name, value)
        if last:
            break
    return settings


def remembering_settings(constructor: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
    """Return a constructor that first keeps what it is called with, as ``_settings``.

    It refuses something else in place of a validation set or a model. What is not a default is kept
    as ``_given`` too. The outermost constructor keeps all arguments;
    those of its bases then replace what they are called with: a class may fix an argument of its
    base.
    """
    signature = inspect.signature(constructor)

    @wraps(constructor)
    def remembering(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        strategy, *positional = args
        settings: dict[str, Any] | None = vars(strategy).get("_settings")
        if settings is None:
            settings = given_settings(type(strategy), positional, kwargs)
            defaults = given_settings(type(strategy), (), {})
            given = {name: v for name, v in settings.items() if v is not defaults[name]}
            _require_kinds(type(strategy).__name__, given)
            vars(strategy).update(_settings=settings, _given=given)
        else:
            passed = signature.bind(*args, **kwargs).arguments
            settings |= {name: passed[name] for name in settings.keys() & passed.keys()}
        constructor(*args, **kwargs)

    return remembering


def _require_kinds(strategy: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a strategy that was given one of Flower's arguments first."""
    for name, kind in _KINDS.items():
        if name in given and not isinstance(given[name], kind):
            raise ConfigError(
                f"{strategy}: {name} = {shown_setting(given[name])}; allowed: a {kind.__name__}, "
                f"before Flower's own arguments, as in {strategy}({name}, ..., fraction_train=0.5)"
            )


def shown_setting(value: Any) -> str:
    """Return a value as one short line: data and models by their kind, not by what is in them."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, nn.Module) or type(value).__repr__ in _UNTOLD:
        return type(value).__name__
    if inspect.isroutine(value):
        return value.__qualname__
    text = repr(value)
    return text if len(text) <= _SHOWN_AT_MOST else text[: _SHOWN_AT_MOST - 3] + "..."
