"""What a strategy tells of itself: what it was set to, and how its weight scores come about."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from flwr.app import ArrayRecord
from pydantic import TypeAdapter
from torch import nn

from fedif_flower.constructors import constructor_signature, require_settings
from fedif_flower.errors import ConfigError
from fedif_flower.server.older_api import refuse_older_arguments
from fedif_flower.stages import Stage
from fedif_flower.valuation.ledger import ScoreLedger

# Flower's strategies tell their settings on its logger, which prints them in any program.
logger = logging.getLogger("flwr")
_AN_ADDRESS: object = object.__repr__
_SHOWN_AT_MOST = 100  # Characters of a value.


class TellsSettings:
    """Remembers what a constructor was called with, refuses what is out of range, tells it all."""

    __signature__: inspect.Signature
    settings: Mapping[str, Any]  # The values of all arguments by name, defaults included.
    made_of: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # See fedif_flower.constructors.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the constructor's signature, not the signature of :meth:`__new__`."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = constructor_signature(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember what the constructor is called with, and refuse what is out of range."""
        strategy = super().__new__(cls)
        try:
            bound = cls.__signature__.bind_partial(*args, **kwargs)
        except TypeError:  # The constructor says it better, unless an older one was meant.
            refuse_older_arguments(cls.__name__, kwargs.keys() - cls.__signature__.parameters)
            cls._refuse_unnamed(len(args))
            strategy.settings = {}
            return strategy
        if args or kwargs:  # Without any, a copy is made, or the constructor says it.
            cls._require_all(bound)
        bound.apply_defaults()
        strategy.settings = bound.arguments
        require_settings(cls, strategy.settings)
        return strategy

    @classmethod
    def _refuse_unnamed(cls, count: int) -> None:
        """Raise ConfigError for more arguments without a name than it takes."""
        parameters = cls.__signature__.parameters.values()
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        unnamed = [parameter.name for parameter in parameters if parameter.kind in kinds]
        if count > len(unnamed):
            allowed = f"only {' and '.join(unnamed)}" if unnamed else "no argument"
            raise ConfigError(
                f"{cls.__name__} takes {allowed} without a name; Flower's own are named, as in "
                "fraction_train=0.5"
            )

    @classmethod
    def _require_all(cls, bound: inspect.BoundArguments) -> None:
        """Raise ConfigError for an argument that is missing."""
        for name, parameter in cls.__signature__.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                continue  # There may be none.
            if parameter.default is parameter.empty and name not in bound.arguments:
                raise ConfigError(
                    f"{cls.__name__} needs {name}, before Flower's own arguments, as in "
                    f"{cls.__name__}({name}, fraction_train=0.5)"
                )

    @classmethod
    def default_stages(cls) -> list[Stage]:
        """Return new stages for a strategy that is given none."""
        return []

    def __repr__(self) -> str:
        """Name the class, the arguments that it was called with, and its default stages."""
        parameters = self.__signature__.parameters
        shown = {
            name: value
            for name, value in self.settings.items()
            if value is not parameters[name].default
        }
        stages = self.default_stages()
        if stages:
            shown.setdefault("stages", stages)
        arguments = [f"{name}={shown_setting(value)}" for name, value in shown.items()]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def summary(self) -> None:
        """Log every setting, as Flower's strategies do."""
        logger.info("\t└──> Settings:")
        for name, argument in self.settings.items():
            # Some are settled by the constructor: "auto" for example.
            value = vars(self).get(name, argument)
            logger.info("\t\t├── %s = %s", name, shown_setting(value))


def shown_setting(value: Any) -> str:
    """Return a value as one short line: data and models by their kind, not by what is in them."""
    is_model = isinstance(value, (nn.Module, ArrayRecord))
    if is_model or type(value).__repr__ is _AN_ADDRESS:
        return type(value).__name__
    text = repr(value)
    if inspect.isroutine(value):
        text = value.__qualname__
    if len(text) > _SHOWN_AT_MOST:
        text = text[: _SHOWN_AT_MOST - 3] + "..."
    return text


@dataclass(frozen=True)
class Scoring:
    r"""How weight scores :math:`\Omega` come about.

    .. math:: \Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma \Psi_i

    Attributes
    ----------
    gamma : float
        The rate, in (0, 1]; 1: nothing is smoothed.
    initial : float
        :math:`\Omega_i` before a member's first round.
    bias_correction : bool
        Whether what is left of ``initial`` is taken out.
    min_max : bool
        Whether :math:`\Psi` is the round's scores mapped to [0, 1].
    """

    gamma: float
    initial: float
    bias_correction: bool
    min_max: bool

    @classmethod
    def of(cls, ledger: ScoreLedger, *, min_max: bool = False) -> Scoring:
        """Return how a ledger smooths."""
        gamma = ledger.gamma if ledger.smooth_update else 1.0
        return cls(gamma, ledger.initial, ledger.bias_correction, min_max)

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Scoring | None:
        """Return what :meth:`to_record` was made of; ``None`` where nothing was recorded.

        Raises
        ------
        ValueError
            If it is something else.
        """
        return None if record is None else TypeAdapter(cls).validate_python(record)

    def to_record(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)

    def words(self) -> str:
        """Return what a reader of the scores has to know, in one to two sentences."""
        if self.gamma == 1:
            words = "It is that of the round alone: nothing is smoothed."
        elif self.bias_correction:
            words = (
                "It is the mean of the member's scores in its rounds, in which later ones count "
                f"more (gamma = {self.gamma:g})."
            )
        else:
            words = (
                f"It begins at {self.initial:.3g}, and each of the member's rounds moves it by "
                f"gamma = {self.gamma:g} of the way to its score in that round: after few rounds "
                "it says little, whatever was sent."
            )
        if self.min_max:
            words += (
                " In a round of two members one gets 1 and the other 0, however close they are; "
                "both get 1 where rounding alone parts them."
            )
        return words
