"""The plain intake: members are sent the model, and their replies become a round's updates."""

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
from fedif_flower.messages.workspace import AcceptedReply, Arrive, Asked, Workspace
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.stages import Stages

Select = Callable[[Sequence[ClientNode], int], list[ClientNode]]
# Is told of a reply by a member as it comes, before it is screened, and whether it is an error.
OnReply = Callable[[ClientNode, bool], object]
BeforeReplies = Callable[[int], object]


class TrainedModel(Protocol):
    """The global model, as far as an intake looks at it."""

    @property
    def layout(self) -> ParameterLayout:
        """Where the arrays lie in the vectors."""
        ...

    @property
    def vectors(self) -> ModelVectors:
        """The model as vectors."""
        ...

    def continues(self, vectors: ModelVectors) -> bool:
        """Tell whether it is a model still, or what was received in the place of that."""
        ...


class Directory(Protocol):
    """The members, as far as an intake looks at them."""

    @property
    def known(self) -> Sequence[ClientNode]:
        """Every node ever seen."""
        ...

    def labels(self, client_ids: Iterable[int]) -> dict[int, str]:
        """Return what clients are called, by their ids."""
        ...


class Host(Protocol):
    """The strategy whose rounds an intake serves, as far as the intake looks at it."""

    combines_updates: bool
    chooses_one: bool

    @property
    def stages(self) -> Stages:
        """What happens to updates before and after they are weighed."""
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
    """What a plain intake is made with.

    Attributes
    ----------
    limits : ReplyLimits
        What a reply must report, and how much of that is believed.
    pace : Pace
        How long a round waits.
    look : callable, optional
        Looks at each reply before it counts; a ReplyError refuses it.
    has_vector : bool
        Whether each reply holds a vector ``[d]`` beside its model.
    """

    limits: ReplyLimits
    pace: Pace
    look: Look | None = None
    has_vector: bool = False


class Intake:
    """Sends a round's members the model, and takes in what comes back.

    What changes who is asked, what travels or what counts is an intake of its own around this one
    (see :class:`IntakeAround`); the loop of rounds knows none of them by name.

    Parameters
    ----------
    settings : IntakeSettings
        How far replies are believed, and waited for.

    Attributes
    ----------
    before_replies : list of callable
        Are called with the round before its replies are read: the rows that hold the updates of
        the last step are written anew from then on.
    on_reply : list of callable
        Are told of each reply of somebody who was asked, at once, while others are still waited
        for: they must not take long.
    """

    is_plain = True  # Whether members send a model, and nothing else of them counts.
    is_alone = True  # Whether a reply is a model alone, which may come in any round.
    asks_once = False  # Whether members can be asked about a model only once: no round is redone.
    reweighs = False  # Whether weights are other ones than the strategy's own.

    def __init__(self, settings: IntakeSettings) -> None:
        self.settings = settings
        self.before_replies: list[BeforeReplies] = []
        self.on_reply: list[OnReply] = []
        self._workspace: Workspace | None = None

    def require(self, host: Any, grid: Grid, initial_arrays: ArrayRecord) -> None:  # noqa: ARG002
        """Raise ConfigError for what a run cannot go on with, before anybody is asked."""
        self.settings.pace.require_in(grid)

    def begin(self, host: Host) -> None:
        """Begin with the model that a run begins with."""
        self.host = host
        self.before_replies.clear()
        self.on_reply.clear()

    @property
    def workspace(self) -> Workspace:
        """Room for the members' updates, kept from round to round."""
        if self._workspace is None:
            self._workspace = self.make_workspace()
        return self._workspace

    def make_workspace(self) -> Workspace:
        """Return room for the updates of the model that is trained."""
        return Workspace(
            self.host.model.layout,
            has_vector=self.settings.has_vector,
            keeps_models=self.host.chooses_one,
        )

    def outstanding(self, server_round: int) -> Mapping[int, Asked]:  # noqa: ARG002
        """Return, by node, who was asked in an earlier round and may still answer in this one."""
        return {}

    def draw(
        self, select: Select, nodes: Sequence[ClientNode], server_round: int
    ) -> list[ClientNode]:
        """Draw a round's members from nodes that may be asked, by the strategy's own rule."""
        if not nodes:
            return []
        return select(nodes, server_round)

    def open(
        self,
        server_round: int,
        members: Sequence[ClientNode],  # noqa: ARG002 (of an intake around this one)
        config: ConfigRecord,
    ) -> None:
        """Begin a round; ``config`` is what all its members are told beside the model."""
        self.workspace.instruct(config, server_round)

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:  # noqa: ARG002
        """Return what a node's next message holds beside the model and the settings."""
        return {}

    def collect(
        self,
        server_round: int,
        replies: Iterable[Message],
        asked: Mapping[int, Asked],
        closing: Closing,
        arrive: Arrive | None,
    ) -> Screening:
        """Screen the replies to a round as they come, each on its own.

        Parameters
        ----------
        server_round : int
            The round.
        replies : iterable of Message
            Whatever came back; it may yet be on its way.
        asked : mapping of int to Asked
            By node, whose replies count.
        closing : Closing
            Says until when they are waited for.
        arrive : callable, optional
            Changes each update ``[d]`` in place as it arrives.
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
        self, server_round: int, replies: Iterable[Message], asked: Mapping[int, Asked]
    ) -> Iterator[Message]:
        """Return replies as they come, and tell of the first, and of each by a member asked."""
        are_told = False
        for reply in replies:
            if not are_told:  # Until now they have looked at the rows while members train.
                self._tell_before_replies(server_round)
                are_told = True
            question = asked.get(reply.metadata.src_node_id)
            if question is not None:
                for tell in self.on_reply:
                    tell(question.node, reply.has_error())
            yield reply
            del reply  # It need not stay in memory until the next is there.
        if not are_told:
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
        """Return the m accepted replies as a round's updates, on a device."""
        return self.workspace.round_updates(server_round, accepted, received, device, seed)

    def reweigh(self, updates: RoundUpdates, aggregation: Aggregation) -> Aggregation:  # noqa: ARG002
        """Return a round's weights as they are to be used."""
        return aggregation

    def close(self, server_round: int, accepted: Sequence[ClientNode], *, stepped: bool) -> None:
        """Take in what the m accepted replies held beside their models, once they are combined."""

    def take_back(self) -> None:
        """Be told that the model, which is still there, goes back to the one before it."""

    def stateful(self) -> dict[str, Any]:
        """Return the parts that remember earlier rounds, by name."""
        return {}

    def go_on(self) -> None:
        """Go on where a run stopped, with members that have kept their half of it."""


class IntakeAround(Intake):
    """An intake around another one; it changes what it overrides.

    Parameters
    ----------
    inner : Intake
        What everything else is left to.
    """

    is_plain = False

    def __init__(self, inner: Intake) -> None:
        super().__init__(inner.settings)
        self.inner = inner
        self.asks_once = inner.asks_once
        self.reweighs = inner.reweighs
        # Whoever listens to the outermost one listens to the one that reads replies.
        self.before_replies = inner.before_replies
        self.on_reply = inner.on_reply

    def require(self, host: Any, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError for what a run cannot go on with, before anybody is asked."""
        self.inner.require(host, grid, initial_arrays)

    def begin(self, host: Host) -> None:
        """Begin with the model that a run begins with."""
        self.host = host
        self.inner.begin(host)

    @property
    def workspace(self) -> Workspace:
        """Room for the members' updates: of the intake that reads the replies."""
        return self.inner.workspace

    def outstanding(self, server_round: int) -> Mapping[int, Asked]:
        """Return, by node, who was asked in an earlier round and may still answer in this one."""
        return self.inner.outstanding(server_round)

    def draw(
        self, select: Select, nodes: Sequence[ClientNode], server_round: int
    ) -> list[ClientNode]:
        """Draw a round's members from nodes that may be asked, by the strategy's own rule."""
        return self.inner.draw(select, nodes, server_round)

    def open(self, server_round: int, members: Sequence[ClientNode], config: ConfigRecord) -> None:
        """Begin a round; ``config`` is what all its members are told beside the model."""
        self.inner.open(server_round, members, config)

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:
        """Return what a node's next message holds beside the model and the settings."""
        return self.inner.enclose(node)

    def collect(
        self,
        server_round: int,
        replies: Iterable[Message],
        asked: Mapping[int, Asked],
        closing: Closing,
        arrive: Arrive | None,
    ) -> Screening:
        """Screen the replies to a round as they come, each on its own."""
        return self.inner.collect(server_round, replies, asked, closing, arrive)

    def reweigh(self, updates: RoundUpdates, aggregation: Aggregation) -> Aggregation:
        """Return a round's weights as they are to be used."""
        return self.inner.reweigh(updates, aggregation)

    def close(self, server_round: int, accepted: Sequence[ClientNode], *, stepped: bool) -> None:
        """Take in what the m accepted replies held beside their models, once they are combined."""
        self.inner.close(server_round, accepted, stepped=stepped)

    def take_back(self) -> None:
        """Be told that the model, which is still there, goes back to the one before it."""
        self.inner.take_back()

    def stateful(self) -> dict[str, Any]:
        """Return the parts that remember earlier rounds, by name."""
        return self.inner.stateful()

    def go_on(self) -> None:
        """Go on where a run stopped, with members that have kept their half of it."""
        self.inner.go_on()
