"""The settings that all strategies have in common, and checks of a strategy's arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Annotated, Any, TypedDict

import torch

from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ConfigError, is_count, require
from fedif_flower.intake.build import MakeIntake
from fedif_flower.intake.intake import Intake
from fedif_flower.intake.pace import SYNCHRONOUS, Pace
from fedif_flower.local_methods import LocalMethod
from fedif_flower.messages.metrics import MetricsAggregation
from fedif_flower.messages.names import Names
from fedif_flower.messages.screening import Look
from fedif_flower.server.nodes import NODE_TIMEOUT, Identify
from fedif_flower.server.run import Callback
from fedif_flower.server.summary import shown_setting
from fedif_flower.settings import NO_BOUND, BoundOfUsual, Setting
from fedif_flower.stages import Stage

PLAIN = LocalMethod()


@dataclass(frozen=True)
class Setup(CheckedFields):
    """How rounds are run, and how far replies are believed.

    Parameters
    ----------
    seed : int
        The seed, >= 0. The clients of each round are drawn by (seed, round), and rules draw by it
        as well. Members who know the seed can foresee these draws; docs/methods/robust-rules.md
        says what they gain by it. Among members whom you do not trust, take
        ``secrets.randbits(63)``.
    device : str or torch.device
        Where weights are computed: ``"auto"``, ``"cpu"``, ``"cuda"`` ...; with MPS, on the CPU.
    trainable_keys : sequence of str, optional
        The names of the trainable parameters, in the order of the vector [d]. Other floating-point
        arrays never enter norms, distances or influences. Default: the trainable parameters of the
        strategy's validation set or model, if it has one; otherwise every floating-point array
        that can be averaged, except batch norm's running statistics (see
        :class:`~fedif_flower.messages.layout.ParameterLayout`).
    tied_keys : mapping of str to str, optional
        From the second name of an array (tied weights) to its first name. A reply in which the two
        differ is refused. Default: those of the strategy's validation set or model, if it has one.
    names : mapping of str to str, or callable, optional
        From the name under which an array is sent to its name in the server's own model:
        ``{"head.weight": "vit.head.weight"}``, or ``lambda name: f"vit.{name}"``. An array that a
        mapping leaves out has the same name in both. ``trainable_keys`` and ``tied_keys`` use the
        model's names.
    identify : callable, optional
        ``identify(grid, node_ids)`` returns a
        :class:`~fedif_flower.messages.client_node.ClientNode` for each node. Default: no node is
        asked; simulated nodes get their partitions, others the names that the operator gave them
        at registration.
    node_timeout : float
        Seconds to wait until ``min_train_nodes`` nodes are online, and before the first round
        until ``min_available_nodes`` are.
    min_valid_replies : int
        A round with fewer valid replies than this, >= 1, fails: the model stays.
    max_failed_rounds : int
        A number k >= 1: the run ends with an error if more than half of the members gave no usable
        reply the last k times that they were asked, or after k rounds in a row in which enough
        replies were usable and no model could be made of them (see
        :class:`~fedif_flower.server.failures.MemberFailures`). A round with fewer than
        ``min_valid_replies`` usable replies neither counts among these k rounds nor interrupts
        them: other members may come back. A round whose replies leave the model where it is,
        because they do not change it or cancel each other, interrupts them: members that have
        learned all there is send such replies, and otherwise a few members could end the run with
        them.
    max_paused_turns : int
        A member that errs again and again is left out for at most this many of its turns, >= 0.
    max_num_examples : float
        A reply that claims more examples than this, >= 1, is refused.
    max_examples_ratio : float
        A client that claims more examples than this many times the round's median, >= 1, counts
        for that many. 0: no such bound.
    pace : Pace
        How long a round waits, and for how many rounds a late reply still counts.
    local_method : LocalMethod
        What clients do besides plain SGD, as far as the server takes part (see
        :mod:`fedif_flower.local_methods`). Clients of this package learn the method from the run
        config.
    intake : callable
        Takes :class:`~fedif_flower.intake.intake.IntakeSettings`, and returns the intake that reads
        replies. Default: the plain :class:`~fedif_flower.intake.intake.Intake`.
    look : callable, optional
        Called as ``look(reply, arrays, node, server_round)`` for each reply before it counts, with
        the round that asked for the reply. If it raises a ReplyError, the reply is refused.
    """

    seed: int = 0
    device: str | torch.device = "auto"
    trainable_keys: Sequence[str] | None = None
    tied_keys: Mapping[str, str] | None = None
    names: Names | None = None
    identify: Identify | None = None
    node_timeout: float = NODE_TIMEOUT
    min_valid_replies: Annotated[
        int, Setting("with fewer, the round fails and the old model stays", ge=1)
    ] = 1
    max_failed_rounds: Annotated[
        int,
        Setting(
            "the run ends when most members gave no usable reply this many times in a row, or when "
            "this many rounds in a row with `min-valid-replies` or more made no model of them; "
            "rounds in which nobody changes the model do not end it",
            ge=1,
            changes_result=False,
        ),
    ] = 3
    max_paused_turns: Annotated[
        int,
        Setting(
            "a member that errs again and again is not asked for 1, 3, 7 ... of its turns, at most "
            "for this many; 0: nobody is paused",
            ge=0,
            changes_result=False,
        ),
    ] = 63
    max_num_examples: float = 10_000_000
    max_examples_ratio: Annotated[
        BoundOfUsual,
        Setting(
            "no client counts for more than this many times the round's median of examples; "
            "0: no such bound",
            allowed=NO_BOUND,
        ),
    ] = 10.0
    intake: MakeIntake = Intake
    look: Look | None = None
    pace: Pace = SYNCHRONOUS
    local_method: LocalMethod = PLAIN

    def __post_init__(self) -> None:
        """Raise ConfigError if a field is out of range or of a wrong type."""
        super().__post_init__()
        require(is_count(self.seed), "seed", self.seed, "an integer >= 0")
        are_seconds = isinstance(self.node_timeout, Real) and self.node_timeout >= 0
        require(are_seconds, "node_timeout", self.node_timeout, "seconds, a number >= 0")
        for name, kind in (("pace", Pace), ("local_method", LocalMethod)):
            value = getattr(self, name)
            require(isinstance(value, kind), name, shown_setting(value), f"a {kind.__name__}")
        most = self.max_num_examples
        are_examples = isinstance(most, Real) and most >= 1
        require(are_examples, "max_num_examples", most, "a number >= 1")
        self._require_names()
        require(callable(self.intake), "intake", shown_setting(self.intake), "a function")
        for name in ("look", "identify"):
            value = getattr(self, name)
            is_function = value is None or callable(value)
            require(is_function, name, shown_setting(value), "a function")

    def _require_names(self) -> None:
        """Raise ConfigError if ``trainable_keys``, ``tied_keys`` or ``names`` has a wrong type."""
        trained = self.trainable_keys
        if trained is not None:
            # A str is a collection too, of its letters: a single name has to be in a list.
            is_list = isinstance(trained, Collection) and not isinstance(trained, str)
            fits = is_list and all(isinstance(name, str) for name in trained)
            require(fits, "trainable_keys", trained, "a list of names")
        tied = self.tied_keys
        is_mapping = tied is None or isinstance(tied, Mapping)
        require(is_mapping, "tied_keys", tied, "a mapping of names to names")
        names = self.names
        are_names = names is None or isinstance(names, Mapping) or callable(names)
        words = "a mapping of names to names, or a function of a name"
        require(are_names, "names", names, words)


DEFAULTS = Setup()


class FlowerArguments(TypedDict, total=False):
    """The arguments that are handed on unchanged to Flower's ``FedAvg``."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str


class BaseArguments(FlowerArguments, total=False):
    """Flower's arguments, and those of :class:`~fedif_flower.strategies.ScreenedStrategy`."""

    train_metrics_aggr_fn: MetricsAggregation | None
    evaluate_metrics_aggr_fn: MetricsAggregation | None
    stages: Sequence[Stage] | None
    callbacks: Sequence[Callback]
    setup: Setup


def require_setup(setup: object) -> Setup:
    """Return ``setup``; raise ConfigError unless it is a Setup."""
    if not isinstance(setup, Setup):
        raise ConfigError(
            f"setup = {shown_setting(setup)}; allowed: a Setup, such as Setup(seed=1)"
        )
    return setup


def require_callbacks(callbacks: object) -> list[Callback]:
    """Return ``callbacks`` as a list; raise ConfigError unless each is a Callback."""
    if not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks = {shown_setting(callbacks)}; allowed: a list of them")
    checked = []
    for callback in callbacks:
        if isinstance(callback, type):
            name = callback.__name__
            raise ConfigError(
                f"callbacks has the class {name}; allowed: an object of it, {name}(...)"
            )
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks: {shown_setting(callback)}; allowed: a Callback each")
        checked.append(callback)
    return checked


def seed_of(base: BaseArguments) -> int:
    """Return the seed of the ``setup`` in a strategy's arguments ``base``."""
    return require_setup(base.get("setup", DEFAULTS)).seed


def with_names_of(model: Any, base: BaseArguments) -> BaseArguments:
    """Return a strategy's arguments whose setup has a model's names of arrays.

    Parameters
    ----------
    model : object
        A model, or an object that holds one, with ``parameter_names`` and ``tied_names``, as a
        Validation has. They are used for ``trainable_keys`` and ``tied_keys`` that are ``None``.
    base : dict
        The strategy's arguments.

    Raises
    ------
    ConfigError
        If ``model`` lacks an attribute that is needed.
    """
    setup = require_setup(base.get("setup", DEFAULTS))
    if setup.trainable_keys is None:
        setup = replace(setup, trainable_keys=_names_in(model, "parameter_names"))
    if setup.tied_keys is None:
        setup = replace(setup, tied_keys=_names_in(model, "tied_names"))
    return {**base, "setup": setup}


def _names_in(model: Any, attribute: str) -> Any:
    """Return an attribute with names of arrays; raise ConfigError if the model lacks it."""
    try:
        return getattr(model, attribute)
    except AttributeError as error:  # A property may have raised it: shown as the cause.
        raise ConfigError(
            f"{type(model).__name__} has no {attribute}; allowed: parameter_names, a list, and "
            "tied_names, a dictionary, or a Validation as its validation"
        ) from error


def require_kind(strategy: object, name: str, value: Any, *kinds: type) -> None:
    """Raise ConfigError unless a strategy's first argument is of one of these kinds.

    A user may have passed one of Flower's arguments first. If ``value`` has some, but not all,
    attributes of a protocol among ``kinds``, the error names those that it lacks.

    Parameters
    ----------
    strategy : object
        The strategy, for errors.
    name : str
        The argument's name.
    value : object
        The argument's value.
    *kinds : type
        The types and protocols that are allowed.
    """
    if isinstance(value, kinds):
        return
    strategy_name = type(strategy).__name__
    for kind in kinds:
        lacks = _lacking(value, kind)
        if lacks:
            raise ConfigError(
                f"{strategy_name}: {name} = {shown_setting(value)}, which lacks "
                f"{', '.join(lacks)}; allowed: a {kind.__name__}"
            )
    allowed = " or ".join(kind.__name__ for kind in kinds)
    raise ConfigError(
        f"{strategy_name}: {name} = {shown_setting(value)}; allowed: a {allowed}, before "
        f"Flower's own arguments, as in {strategy_name}({name}, ..., fraction_train=0.5)"
    )


def _lacking(value: Any, kind: type) -> list[str]:
    """Return the attributes of a protocol that a value lacks, if it has some of the others.

    Empty if it has all of them or none, or if ``kind`` is no protocol.
    """
    if not getattr(kind, "_is_protocol", False):
        return []
    attributes = [attribute for attribute in vars(kind) if not attribute.startswith("_")]
    lacks = [attribute for attribute in attributes if not hasattr(value, attribute)]
    if len(lacks) == len(attributes):
        return []
    return lacks
