"""What a strategy says about itself: its settings, and how its weight scores are computed."""

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

# Flower's logger, on which Flower's strategies log their settings: it prints in any program.
logger = logging.getLogger("flwr")
_AN_ADDRESS: object = object.__repr__  # It shows an object's class and its address in memory.
_SHOWN_AT_MOST = 100  # Characters of a value that are shown.


class TellsSettings:
    """A base that records the arguments of a subclass's constructor, checks them and logs them.

    It does so in :meth:`__new__`, before the constructor runs, so that a subclass need not do
    anything for it.
    """

    __signature__: inspect.Signature
    settings: Mapping[str, Any]  # The values of all arguments by name, defaults included.
    # Which arguments are objects with settings of their own (see fedif_flower.constructors).
    made_of: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Set the class's signature to its constructor's, not to that of :meth:`__new__`."""
        super().__init_subclass__(**kwargs)
        cls.__signature__ = constructor_signature(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Record the constructor's arguments, and raise ConfigError if one is out of range."""
        strategy = super().__new__(cls)
        try:
            bound = cls.__signature__.bind_partial(*args, **kwargs)
        except TypeError:
            # The arguments do not fit the signature. Two mistakes get an error of our own. For all
            # others Python's error is clear: the constructor raises it next.
            refuse_older_arguments(cls.__name__, kwargs.keys() - cls.__signature__.parameters)
            cls._refuse_unnamed(len(args))
            strategy.settings = {}
            return strategy
        # Without any arguments this may be `copy`, which calls no constructor. If it is not, the
        # constructor raises for what is missing.
        if args or kwargs:
            cls._require_all(bound)
        bound.apply_defaults()
        strategy.settings = bound.arguments
        require_settings(cls, strategy.settings)
        return strategy

    @classmethod
    def _refuse_unnamed(cls, count: int) -> None:
        """Raise ConfigError if ``count`` positional arguments are more than the class takes."""
        parameters = cls.__signature__.parameters.values()
        if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
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
        """Raise ConfigError if a required argument is missing."""
        for name, parameter in cls.__signature__.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                continue  # ``*args`` may be empty.
            if parameter.default is parameter.empty and name not in bound.arguments:
                raise ConfigError(
                    f"{cls.__name__} needs {name}, before Flower's own arguments, as in "
                    f"{cls.__name__}({name}, fraction_train=0.5)"
                )

    @classmethod
    def default_stages(cls) -> list[Stage]:
        """Return new stages for a strategy that is created without ``stages``."""
        return []

    def __repr__(self) -> str:
        """Return the class with the arguments that are not the defaults, and its default stages."""
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
            # The constructor may have replaced the argument's value, such as "auto".
            value = vars(self).get(name, argument)
            logger.info("\t\t├── %s = %s", name, shown_setting(value))


def shown_setting(value: Any) -> str:
    """Return a value as one short line.

    A model, and an object whose class defines no ``__repr__``, are shown by their types alone.
    """
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
    r"""How weight scores :math:`\Omega` follow from a round's scores :math:`\Psi`.

    .. math:: \Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma \Psi_i

    for each member i that takes part in the round.

    Attributes
    ----------
    gamma : float
        The rate :math:`\gamma` of the smooth update, in (0, 1]; 1: nothing is smoothed.
    initial : float
        :math:`\Omega_i` before a member's first round.
    bias_correction : bool
        Whether the part that is left of ``initial`` is taken out (see
        :class:`~fedif_flower.valuation.ledger.ScoreLedger`).
    min_max : bool
        Whether :math:`\Psi_i` are the round's scores mapped to [0, 1].
    """

    gamma: float
    initial: float
    bias_correction: bool
    min_max: bool

    @classmethod
    def of(cls, ledger: ScoreLedger, *, min_max: bool = False) -> Scoring:
        """Return how a ledger computes weight scores; ``min_max`` is not the ledger's to know."""
        gamma = ledger.gamma if ledger.smooth_update else 1.0
        return cls(gamma, ledger.initial, ledger.bias_correction, min_max)

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Scoring | None:
        """Return the object of which :meth:`to_record` made ``record``; ``None`` for ``None``.

        Raises
        ------
        ValueError
            If ``record`` does not have the fields and types of such a record.
        """
        return None if record is None else TypeAdapter(cls).validate_python(record)

    def to_record(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        return asdict(self)

    def words(self) -> str:
        """Return one or two sentences that tell a reader of the scores what they mean."""
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
