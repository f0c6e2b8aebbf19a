"""What is the same for every strategy: how rounds are run and end, and how far replies count."""

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
    """How rounds are run, and how far replies count.

    Parameters
    ----------
    seed : int
        Clients are drawn from (seed, round).
    device : str or torch.device
        Where weights are computed: ``"auto"``, ``"cpu"``, ``"cuda"`` ...; for MPS on the CPU.
    trainable_keys : sequence of str, optional
        Names of the trainable parameters, in the order of the vector [d]; other floating-point
        arrays never enter norms, distances or influences. ``None``: those of the strategy's
        validation set or model, if it has one, else all floating-point arrays but those
        that cannot be (see :class:`~fedif_flower.messages.layout.ParameterLayout`).
    tied_keys : mapping of str to str, optional
        Second names of arrays (tied weights), and their first names; a reply in which the two
        differ is refused. ``None``: as ``trainable_keys``.
    names : mapping of str to str, or callable, optional
        What the server's own model calls an array, by the name under which it travels:
        ``{"head.weight": "vit.head.weight"}``, or ``lambda name: f"vit.{name}"``. Names that a
        mapping leaves out are the same. ``trainable_keys`` and ``tied_keys`` have the model's own.
    identify : callable, optional
        ``identify(grid, node_ids)`` says who nodes are, a
        :class:`~fedif_flower.messages.client_node.ClientNode` each. ``None``: simulated ones are
        their partitions, others what the operator called them at registration.
    node_timeout : float
        Seconds to wait for ``min_train_nodes``, and before the first round for
        ``min_available_nodes`` as well.
    min_valid_replies : int
        With fewer, >= 1, the round fails: the old model is kept.
    max_failed_rounds : int
        The run stops with an error where more than half of the members gave no usable reply this
        many times in a row that they were asked, and after this many rounds in a row in which no
        model could be made of usable replies (see
        :class:`~fedif_flower.server.failures.MemberFailures`). A round in which nobody changes
        the model, or what counts of the updates cancels, ends nothing: so do members that have
        learned all there is, and a few of them could end the run by it. Nor does a round with some
        usable replies, but fewer than ``min_valid_replies``: others may come back.
    max_paused_turns : int
        Members that err again and again are not asked for at most this many of their turns, >= 0.
    max_num_examples, max_examples_ratio : float
        A client that claims more examples is refused; one that claims more than this many times
        the round's median, >= 1, counts for that many. 0: no such bound.
    pace : Pace
        How long a round waits, and how many rounds a reply may take to count.
    local_method : LocalMethod
        What clients do beside plain SGD, as far as the server takes part (see
        :mod:`fedif_flower.local_methods`). Clients of this package are told by the run config.
    intake : callable
        Makes the intake that reads replies, of an
        :class:`~fedif_flower.intake.intake.IntakeSettings`; default: the plain
        :class:`~fedif_flower.intake.intake.Intake`.
    look : callable, optional
        Looks at each reply, its arrays, its node and the round that asked for it, before it counts;
        a ReplyError refuses it. ``None``: nobody looks.
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
            "in this many rounds in a row no model could be made of `min-valid-replies` or more; "
            "rounds in which nobody changes the model, or in which fewer but some came, do not end "
            "it",
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
        """Raise ConfigError for what is out of range, or of another kind."""
        super().__post_init__()
        require(is_count(self.seed), "seed", self.seed, "an integer >= 0")
        are_seconds = isinstance(self.node_timeout, Real) and self.node_timeout >= 0
        require(are_seconds, "node_timeout", self.node_timeout, "seconds, a number >= 0")
        for name, kind in (("pace", Pace), ("local_method", LocalMethod)):
            value = getattr(self, name)
            require(isinstance(value, kind), name, shown_setting(value), f"a {kind.__name__}")
        self._require_names()
        require(callable(self.intake), "intake", shown_setting(self.intake), "a function")
        for name in ("look", "identify"):
            value = getattr(self, name)
            is_function = value is None or callable(value)
            require(is_function, name, shown_setting(value), "a function")

    def _require_names(self) -> None:
        """Raise ConfigError for names of arrays that are none: a text is no list of its letters."""
        trained = self.trainable_keys
        if trained is not None:
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
    """Those of Flower's ``FedAvg`` that are handed on to it as they are."""

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
    """Return a strategy's setup; raise ConfigError if it is none."""
    if not isinstance(setup, Setup):
        raise ConfigError(
            f"setup = {shown_setting(setup)}; allowed: a Setup, such as Setup(seed=1)"
        )
    return setup


def require_callbacks(callbacks: object) -> list[Callback]:
    """Return a strategy's callbacks; raise ConfigError if something else is among them."""
    if not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks = {shown_setting(callbacks)}; allowed: a list of them")
    checked = []
    for callback in callbacks:
        if isinstance(callback, type):
            name = callback.__name__
            raise ConfigError(f"callbacks: the class {name}; allowed: {name}(...)")
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks: {shown_setting(callback)}; allowed: a Callback each")
        checked.append(callback)
    return checked


def seed_of(base: BaseArguments) -> int:
    """Return the seed of the setup among a strategy's arguments."""
    return require_setup(base.get("setup", DEFAULTS)).seed


def with_names_of(model: Any, base: BaseArguments) -> BaseArguments:
    """Return a strategy's arguments with a model's names of arrays, where the setup gives none.

    The model, or what holds it, has ``parameter_names`` and ``tied_names``, as a Validation has.
    """
    setup = require_setup(base.get("setup", DEFAULTS))
    if setup.trainable_keys is None:
        setup = replace(setup, trainable_keys=_names_in(model, "parameter_names"))
    if setup.tied_keys is None:
        setup = replace(setup, tied_keys=_names_in(model, "tied_names"))
    return {**base, "setup": setup}


def _names_in(model: Any, attribute: str) -> Any:
    """Return the names of arrays that an attribute has; raise ConfigError where there is none."""
    try:
        return getattr(model, attribute)
    except AttributeError as error:  # Perhaps of a property's own: it is the cause then.
        raise ConfigError(
            f"{type(model).__name__} has no {attribute}; allowed: parameter_names, a list, and "
            "tied_names, a dictionary, or a Validation as its validation"
        ) from error


def require_kind(strategy: object, name: str, value: Any, *kinds: type) -> None:
    """Raise ConfigError for a strategy that was given one of Flower's arguments first.

    What has some attributes of a protocol among the kinds, and not all, is told which it lacks.
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
    """Return what a value lacks of a protocol of which it has something; empty: none of that."""
    if not getattr(kind, "_is_protocol", False):
        return []
    attributes = [attribute for attribute in vars(kind) if not attribute.startswith("_")]
    lacks = [attribute for attribute in attributes if not hasattr(value, attribute)]
    if len(lacks) == len(attributes):
        return []
    return lacks
