"""The plain intake, which sends members the model and makes updates of their replies.

It also has the base class of the intakes that wrap it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedif_flower.intake.pace import Pace
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.metrics import ReplyLimits
from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.screening import Look, Screening, screen_replies
from fedif_flower.messages.workspace import AcceptedReply, Arrive, Question, Workspace
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.stages import Stages

# Takes nodes and the round, and returns the nodes that are drawn.
Select = Callable[[Sequence[ClientNode], int], list[ClientNode]]
# Called with the member when its reply comes, before it is screened, and whether it is an error.
OnReply = Callable[[ClientNode, bool], object]
# Called with the round before its replies are read.
BeforeReplies = Callable[[int], object]


class TrainedModel(Protocol):
    """The global model, as far as an intake needs it."""

    @property
    def layout(self) -> ParameterLayout:
        """Where the arrays lie in the vectors."""
        ...

    @property
    def vectors(self) -> ModelVectors:
        """The model as vectors."""
        ...

    def continues(self, vectors: ModelVectors) -> bool:
        """Tell whether the global model is still ``vectors``, or a model sent in their place."""
        ...


class Directory(Protocol):
    """The members, as far as an intake needs them."""

    @property
    def known(self) -> Sequence[ClientNode]:
        """All nodes seen so far."""
        ...

    def labels(self, client_ids: Iterable[int]) -> dict[int, str]:
        """Return a name for each client id."""
        ...


class Host(Protocol):
    """The strategy whose rounds an intake serves, as far as the intake needs it."""

    combines_updates: bool
    chooses_one: bool

    @property
    def stages(self) -> Stages:
        """The stages, which change updates before and after they are weighed."""
        ...

    @property
    def model(self) -> TrainedModel:
        """The global model."""
        ...

    @property
    def nodes(self) -> Directory:
        """The members."""
        ...


@dataclass(frozen=True)
class IntakeSettings:
    """The settings of a plain intake.

    Attributes
    ----------
    limits : ReplyLimits
        What a reply must report, and how much of that is believed.
    pace : Pace
        How long a round waits.
    look : callable, optional
        Looks at each reply before it counts; a ReplyError that it raises refuses the reply.
    has_vector : bool
        Whether each reply has to hold a vector ``[d]`` besides its model, as SCAFFOLD's do.
    """

    limits: ReplyLimits
    pace: Pace
    look: Look | None = None
    has_vector: bool = False


class Intake:
    """Sends a round's members the model, and makes a round's updates of their replies.

    A feature that changes which members are asked, what is sent, or what counts is another intake
    that wraps this one (see :class:`IntakeAround`). The loop of rounds knows none of them by name.
    In a round it calls :meth:`outstanding`, :meth:`draw`, :meth:`open`, :meth:`enclose`,
    :meth:`collect`, :meth:`updates`, :meth:`reweigh` and :meth:`close`, in this order.

    Parameters
    ----------
    settings : IntakeSettings
        How far replies are believed, and how long they are waited for.

    Attributes
    ----------
    before_replies : list of callable
        Each is called with the round before its replies are read. It is the last moment at which
        the updates of the last step can be read: the replies overwrite them.
    on_reply : list of callable
        Each is called with a member that was asked, as soon as its reply comes, and with whether
        the reply is an error. Other replies wait meanwhile, so the call must not take long.
    """

    # Whether members send a model and metrics, and nothing else of them counts.
    is_plain = True
    # Whether a reply holds nothing that belongs to its own round, so that it may come late.
    may_come_late = True
    # Whether members can be asked about a model only once, so that no round can be redone.
    asks_once = False
    # Whether the intake may change the strategy's weights.
    reweighs = False

    def __init__(self, settings: IntakeSettings) -> None:
        self.settings = settings
        self.before_replies: list[BeforeReplies] = []
        self.on_reply: list[OnReply] = []
        self._workspace: Workspace | None = None

    def require(self, host: Any, grid: Grid, initial_arrays: ArrayRecord) -> None:  # noqa: ARG002
        """Raise ConfigError if the intake cannot work in a run, before any client is asked.

        Parameters
        ----------
        host : object
            The strategy.
        grid : Grid
            The connection to the clients.
        initial_arrays : ArrayRecord
            The model that the run begins with.
        """
        self.settings.pace.require_in(grid)

    def begin(self, host: Host) -> None:
        """Begin a run of the strategy ``host``, which has received the initial model."""
        self.host = host
        self.before_replies.clear()
        self.on_reply.clear()

    @property
    def workspace(self) -> Workspace:
        """The rows for the members' updates, which are reused from round to round."""
        if self._workspace is None:
            self._workspace = self.make_workspace()
        return self._workspace

    def make_workspace(self) -> Workspace:
        """Return a new workspace with rows for updates of the model that is trained."""
        return Workspace(
            self.host.model.layout,
            has_vector=self.settings.has_vector,
            keeps_models=self.host.chooses_one,
        )

    def outstanding(self, server_round: int) -> Mapping[int, Question]:  # noqa: ARG002
        """Return the unanswered questions of earlier rounds whose replies still count, by node."""
        return {}

    def draw(
        self, select: Select, nodes: Sequence[ClientNode], server_round: int
    ) -> list[ClientNode]:
        """Draw a round's members by the strategy's ``select``, from ``nodes`` that may be asked."""
        if not nodes:
            return []
        return select(nodes, server_round)

    def open(self, server_round: int, members: Sequence[ClientNode], config: ConfigRecord) -> None:
        """Begin a round; ``config`` are the settings that all its members get with the model."""

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:  # noqa: ARG002
        """Return further records for a node's next message, besides model and settings, by name."""
        return {}

    def collect(
        self,
        server_round: int,
        replies: Iterable[Message],
        asked: Mapping[int, Question],
        closing: Closing,
        arrive: Arrive | None,
    ) -> Screening:
        """Screen a round's replies as they come, each on its own.

        Parameters
        ----------
        server_round : int
            The round.
        replies : iterable of Message
            The replies; an iterator may wait for those that have not come yet.
        asked : mapping of int to Question
            By node id, the question to each client whose reply counts.
        closing : Closing
            Says when the round stops waiting; it is told of each usable reply.
        arrive : callable, optional
            Changes each update ``[d]`` in place as it arrives, and returns its squared norm.
        """
        return screen_replies(
            self._announced(server_round, replies, asked),
            asked,
            self.workspace,
            self.settings.limits,
            arrive=arrive,
            closing=closing,
            look=self.settings.look,
            server_round=server_round,
        )

    def _announced(
        self, server_round: int, replies: Iterable[Message], asked: Mapping[int, Question]
    ) -> Iterator[Message]:
        """Yield replies as they come, and call the listeners before and at each.

        ``before_replies`` are called before the first reply is read, ``on_reply`` at each reply of
        a client that was asked.
        """
        are_told = False
        for reply in replies:
            # Only now: while members train, listeners may still read the last round's rows.
            if not are_told:
                self._tell_before_replies(server_round)
                are_told = True
            question = asked.get(reply.metadata.src_node_id)
            if question is not None:
                for tell in self.on_reply:
                    tell(question.node, reply.has_error())
            yield reply
            del reply  # It need not stay in memory until the next is there.
        if not are_told:  # No reply came.
            self._tell_before_replies(server_round)

    def _tell_before_replies(self, server_round: int) -> None:
        for tell in self.before_replies:
            tell(server_round)

    def updates(
        self,
        server_round: int,
        accepted: Sequence[AcceptedReply],
        received: ModelVectors,
        device: torch.device,
        seed: int,
    ) -> RoundUpdates:
        """Return the m accepted replies as a round's updates, on ``device``.

        ``received`` is the model that the members were sent. Rules that draw use ``seed``.
        """
        return self.workspace.round_updates(server_round, accepted, received, device, seed)

    def reweigh(self, updates: RoundUpdates, aggregation: Aggregation) -> Aggregation:  # noqa: ARG002
        """Return the weights to use in place of the strategy's; here, the strategy's own."""
        return aggregation

    def close(self, server_round: int, accepted: Sequence[ClientNode], *, stepped: bool) -> None:
        """Take in what accepted replies held besides their models, at the end of a round.

        ``stepped`` says whether the round took a step.
        """

    def take_back(self) -> None:
        """Prepare for the model's return to the one before it; called just before that."""

    def stateful(self) -> dict[str, Any]:
        """Return the parts that remember earlier rounds, by name."""
        return {}

    def go_on(self) -> None:
        """Resume a run whose clients have kept what they remember of it."""


class IntakeAround(Intake):
    """An intake that wraps another one; a subclass overrides what it changes.

    Parameters
    ----------
    inner : Intake
        The wrapped intake, to which all other calls go.
    """

    is_plain = False

    def __init__(self, inner: Intake) -> None:
        super().__init__(inner.settings)
        self.inner = inner
        self.asks_once = inner.asks_once
        self.reweighs = inner.reweighs
        # The same lists: a listener that is added here is called by the innermost intake.
        self.before_replies = inner.before_replies
        self.on_reply = inner.on_reply

    def require(self, host: Any, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError if the intake cannot work in a run, before any client is asked."""
        self.inner.require(host, grid, initial_arrays)

    def begin(self, host: Host) -> None:
        """Begin a run of the strategy ``host``, which has received the initial model."""
        self.host = host
        self.inner.begin(host)

    @property
    def workspace(self) -> Workspace:
        """The rows for the members' updates, which the innermost intake keeps."""
        return self.inner.workspace

    def outstanding(self, server_round: int) -> Mapping[int, Question]:
        """Return the unanswered questions of earlier rounds whose replies still count, by node."""
        return self.inner.outstanding(server_round)

    def draw(
        self, select: Select, nodes: Sequence[ClientNode], server_round: int
    ) -> list[ClientNode]:
        """Draw a round's members by the strategy's ``select``, from ``nodes`` that may be asked."""
        return self.inner.draw(select, nodes, server_round)

    def open(self, server_round: int, members: Sequence[ClientNode], config: ConfigRecord) -> None:
        """Begin a round; ``config`` are the settings that all its members get with the model."""
        self.inner.open(server_round, members, config)

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:
        """Return further records for a node's next message, besides model and settings, by name."""
        return self.inner.enclose(node)

    def collect(
        self,
        server_round: int,
        replies: Iterable[Message],
        asked: Mapping[int, Question],
        closing: Closing,
        arrive: Arrive | None,
    ) -> Screening:
        """Screen a round's replies as they come, each on its own."""
        return self.inner.collect(server_round, replies, asked, closing, arrive)

    def reweigh(self, updates: RoundUpdates, aggregation: Aggregation) -> Aggregation:
        """Return the weights to use in place of the strategy's; here, the inner intake's."""
        return self.inner.reweigh(updates, aggregation)

    def close(self, server_round: int, accepted: Sequence[ClientNode], *, stepped: bool) -> None:
        """Take in what accepted replies held besides their models, at the end of a round."""
        self.inner.close(server_round, accepted, stepped=stepped)

    def take_back(self) -> None:
        """Prepare for the model's return to the one before it; called just before that."""
        self.inner.take_back()

    def stateful(self) -> dict[str, Any]:
        """Return the parts that remember earlier rounds, by name."""
        return self.inner.stateful()

    def go_on(self) -> None:
        """Resume a run whose clients have kept what they remember of it."""
        self.inner.go_on()
