"""What is the same for every strategy: how rounds are run and end, and how far replies count."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, TypedDict

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ConfigError, require
from fedif_flower.local_methods import LocalMethod
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.metrics import MetricsAggregation
from fedif_flower.messages.names import Names
from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.screened_grid import ScreenedGrid
from fedif_flower.messages.screening import Asked, Look, Screening, Workspace
from fedif_flower.server.callbacks import Callback
from fedif_flower.server.nodes import NODE_TIMEOUT, Identify
from fedif_flower.server.summary import shown_setting
from fedif_flower.settings import NO_BOUND, BoundOfUsual, Setting
from fedif_flower.stages import Stage

PLAIN = LocalMethod()


class GivenIntake(Protocol):
    """Makes the intake of a strategy, which knows of it no more than this."""

    def require(self, strategy: Any, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError for a strategy or model that it is not for, before round 1."""
        ...

    def workspace(self, layout: ParameterLayout, max_length: float) -> Workspace:
        """Return what takes in replies; no update may be longer than ``max_length``."""
        ...


def inverse_root(rounds: int) -> float:
    r"""Return :math:`1 / \sqrt{1 + s}`, what FedBuff counts an update of s rounds ago for."""
    return 1.0 / math.sqrt(1.0 + rounds)


@dataclass(frozen=True)
class Pace(CheckedFields):
    """When a round closes, and for how long late replies count.

    A late reply enters the round in which it comes. It is screened against the model that it was
    trained on, and its update is multiplied by ``staleness`` of the rounds between: scores, steps
    and contributions are those of what it became. A member is not asked anew while its reply is
    waited for.

    Parameters
    ----------
    quorum : float
        A round closes with so many usable replies: from 1 on a number, below 1 a share of the
        members that are asked or still at work; 0: all that are asked are waited for.
    grace : float
        Seconds for which a round stays open once it has its quorum, >= 0.
    ask_more : float
        So many times as many members are drawn as ``fraction_train`` says, >= 1.
    late_rounds : int
        A reply counts if it comes at most so many rounds late; 0: what is late is lost.
    staleness : callable
        Takes rounds of delay >= 1, returns a factor in [0, 1].

    References
    ----------
    Nguyen et al., 2022 (Federated learning with buffered asynchronous aggregation).
    """

    quorum: Annotated[
        float,
        Setting(
            "a round closes with so many usable replies: from 1 on a number, below 1 a share of "
            "the members that are asked or still at work; 0: all that are asked are waited for",
            ge=0,
        ),
    ] = 0.0
    grace: Annotated[
        float,
        Setting("seconds for which a round stays open once it has its quorum", ge=0),
    ] = 0.0
    ask_more: Annotated[
        float,
        Setting("so many times as many members are asked as `fraction-train` says", ge=1),
    ] = 1.0
    late_rounds: Annotated[
        int,
        Setting(
            "a reply that comes at most so many rounds after its own still counts, less by "
            "1 / sqrt(1 + rounds); until then its member is not asked anew; 0: it is lost",
            ge=0,
        ),
    ] = 0
    staleness: Callable[[int], float] = inverse_root

    def __post_init__(self) -> None:
        """Raise ConfigError for what is out of range."""
        super().__post_init__()
        whole = self.quorum < 1 or self.quorum == int(self.quorum)
        require(whole, "quorum", self.quorum, "0, a share below 1, or a whole number")
        require(bool(self.quorum or not self.grace), "grace", self.grace, "0 without a quorum")

    def require_in(self, grid: Grid) -> None:
        """Raise ConfigError where a round cannot close as it should: the grid's loop waits."""
        words = "0 where another loop than the strategy's own start sends the messages"
        require(isinstance(grid, ScreenedGrid) or not self.quorum, "quorum", self.quorum, words)

    def closing(self, num_asked: int, awaited: Collection[int]) -> Closing:
        """Return when a round closes in which so many members are asked, beside those at work."""
        at_work = num_asked + len(awaited)
        share = math.ceil(self.quorum * at_work) if self.quorum < 1 else int(self.quorum)
        quorum = min(share, at_work) or None
        return Closing(quorum, self.grace, frozenset(awaited), keeps=self.late_rounds > 0)


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
        validation set or model, if it has one, else all floating-point arrays.
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
        learned all there is, and a few of them could end the run by it.
    max_paused_turns : int
        Members that err again and again are not asked for at most so many of their turns, >= 0.
    max_num_examples, max_examples_ratio : float
        A client that claims more examples is refused; one that claims more than this many times
        the round's median, >= 1, counts for so many. 0: no such bound.
    pace : Pace
        How long a round waits, and for how long late replies count.
    local_method : LocalMethod
        What clients do beside plain SGD, as far as the server takes part (see
        :mod:`fedif_flower.local_methods`). Clients of this package are told by the run config.
    intake : GivenIntake, optional
        Takes in replies in the place of the strategy's own intake, such as masked ones.
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
            "in this many rounds in a row no model could be made of usable replies; rounds in "
            "which nobody changes the model do not end it",
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
            "no client counts for more than so many times the round's median of examples; "
            "0: no such bound",
            allowed=NO_BOUND,
        ),
    ] = 10.0
    intake: GivenIntake | None = None
    look: Look | None = None
    pace: Pace = Pace()
    local_method: LocalMethod = PLAIN


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


def naming(base: BaseArguments, model: Any) -> BaseArguments:
    """Return them with the names of arrays of a model of one's own, where the setup gives none.

    It has ``parameter_names`` and ``tied_names``, as a Validation has.
    """
    setup = base.get("setup", DEFAULTS)
    trained, tied = setup.trainable_keys, setup.tied_keys
    named = replace(
        setup,
        trainable_keys=model.parameter_names if trained is None else trained,
        tied_keys=model.tied_names if tied is None else tied,
    )
    return {**base, "setup": named}


def require_kind(strategy: object, name: str, value: Any, *kinds: type) -> None:
    """Raise ConfigError for a strategy that was given one of Flower's arguments first."""
    if not isinstance(value, kinds):
        own = type(strategy).__name__
        allowed = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(
            f"{own}: {name} = {shown_setting(value)}; allowed: a {allowed}, before Flower's own "
            f"arguments, as in {own}({name}, ..., fraction_train=0.5)"
        )


class LateReplies(Callback):
    """Lets replies to earlier rounds count in the round in which they come.

    Parameters
    ----------
    pace : Pace
        For how long, and for how much.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._asked: dict[int, Asked] = {}

    def require(self, grid: Grid, local: object | None) -> None:
        """Raise ConfigError where late replies cannot come, or cannot be used."""
        late, self._asked = self._pace.late_rounds, {}  # An earlier run's come no more.
        can_come = isinstance(grid, ScreenedGrid) and grid.keeps_late
        words = (
            "0 in a simulation (and no buffered rounds), whose replies are never late, and where "
            "another loop than the strategy's own start sends the messages"
        )
        require(can_come, "late_rounds", late, words)
        words = "0 with a local method whose clients send more than a model"
        require(local is None, "late_rounds", late, words)

    def awaited(self, server_round: int) -> dict[int, Asked]:
        """Return, by node, whose replies still count in a round, and for how much."""
        ages = {node_id: server_round - one.server_round for node_id, one in self._asked.items()}
        self._asked = {
            i: self._asked[i] for i, age in ages.items() if age <= self._pace.late_rounds
        }
        staleness = self._pace.staleness
        return {i: replace(one, factor=staleness(ages[i])) for i, one in self._asked.items()}

    def on_screened(self, screening: Screening, asked: Mapping[int, Asked]) -> None:
        """Take in a round: who answered is free, who was asked and did not is waited for."""
        for accepted in screening.accepted:
            self._asked.pop(accepted.node.node_id, None)
        for refused in screening.refused:
            self._asked.pop(refused.node.node_id, None)
            if refused.status == "late":
                self._asked[refused.node.node_id] = asked[refused.node.node_id]
