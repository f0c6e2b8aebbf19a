"""What a strategy was set to, for the log: every argument of its constructor."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedif_flower.sections import require_settings
from fedif_flower.stages import Stage

_UNTOLD: tuple[object, ...] = (object.__repr__,)  # It shows an address and nothing else.
# Flower's strategies tell their settings on its logger, which prints them in any program.
logger = logging.getLogger("flwr")
_SHOWN_AT_MOST = 100  # Characters of a value.


class Settings(NamedTuple):
    """The values of all arguments by name, and those of them that are not their default."""

    values: Mapping[str, Any]
    given: Mapping[str, Any]


def constructor_signature(kind: type) -> inspect.Signature:
    """Return what a class is called with: what it passes on is what its bases take."""
    return _signature([base for base in kind.__mro__ if "__init__" in vars(base)])


def _signature(owners: Sequence[Any]) -> inspect.Signature:
    _, *own = inspect.signature(owners[0].__init__).parameters.values()
    named = {p.name: p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if len(named) < len(own) and len(owners) > 1:
        by_position = any(p.kind is p.VAR_POSITIONAL for p in own)
        for p in _signature(owners[1:]).parameters.values():
            if by_position or p.default is not p.empty:
                named.setdefault(p.name, p if by_position else p.replace(kind=p.KEYWORD_ONLY))
    return inspect.Signature(sorted(named.values(), key=lambda p: p.kind))


class TellsSettings:
    """Remembers what a constructor was called with, refuses what is out of range, tells it all."""

    __signature__: inspect.Signature
    settings: Settings  # What the constructor was called with.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the constructor's signature, not that of :meth:`__new__`."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = constructor_signature(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember what the constructor is called with, and refuse what is out of range."""
        made = super().__new__(cls)
        made.settings = given_settings(cls, args, kwargs)
        require_settings(cls, made.settings.values)
        return made

    @classmethod
    def default_stages(cls) -> list[Stage]:
        """Return new stages for a strategy that is given none."""
        return []

    def __repr__(self) -> str:
        """Name the class, the arguments that it was called with, and its default stages."""
        given = self.settings.given
        shown = [f"{name}={shown_setting(value)}" for name, value in given.items()]
        if "stages" not in given and (stages := self.default_stages()):
            shown.append(f"stages={shown_setting(stages)}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def summary(self) -> None:
        """Log every setting, as Flower's strategies do."""
        logger.info("\t└──> Settings:")
        for name, given in self.settings.values.items():
            # Some are settled by the constructor: "auto" for example.
            logger.info("\t\t├── %s = %s", name, shown_setting(vars(self).get(name, given)))


def given_settings(kind: type, positional: Sequence[Any], named: Mapping[str, Any]) -> Settings:
    """Return the values of the arguments that a class is called with, its defaults included.

    What does not fit is left to the constructor to refuse.
    """
    signature = constructor_signature(kind)
    try:
        bound = signature.bind_partial(*positional, **named)
    except TypeError:
        return Settings({}, {})
    bound.apply_defaults()
    values = dict(bound.arguments)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    given = {name: value for name, value in values.items() if value is not defaults[name]}
    return Settings(values, given)


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
    listed = isinstance(value, list)
    text = f"[{', '.join(map(shown_setting, value[:_SHOWN_AT_MOST]))}]" if listed else repr(value)
    return text if len(text) <= _SHOWN_AT_MOST else text[: _SHOWN_AT_MOST - 3] + "..."
