"""What goes on beside training: records, evaluation, checkpoints, and what a user adds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.screening import Asked, Screening, Workspace
from fedif_flower.stages import Stages
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.strategies.nodes import NodeDirectory
from fedif_flower.strategies.reports import RoundReport
from fedif_flower.strategies.steps import Step
from fedif_flower.strategies.summary import Scoring


class RunningStrategy(Protocol):
    """What a callback may look at of the strategy that it stands beside."""

    combines_updates: bool
    stages: Stages
    nodes: NodeDirectory
    model: GlobalModel
    seed: int

    @property
    def workspace(self) -> Workspace:
        """Room for what replies hold."""
        ...

    @property
    def callbacks(self) -> Sequence[Callback]:
        """Who is told of its rounds."""
        ...

    @property
    def scoring(self) -> Scoring | None:
        """How the scores come about that it reports as weight scores; ``None``: not smoothed."""
        ...


@dataclass(frozen=True)
class Question:
    """Who is asked in a round, and who is not.

    Attributes
    ----------
    server_round : int
        Its number.
    asked : collection of ClientNode
        Those that get the model now.
    at_work : collection of ClientNode
        Those asked in earlier rounds whose replies still count.
    online : sequence of ClientNode
        Everybody who could be reached.
    paused : collection of int
        The client ids of those left out after errors, reached or not.
    candidates : collection of ClientNode
        Those of whom ``asked`` were drawn: neither paused, nor at work, nor barred by a callback.
    grid : Grid, optional
        The way to all of them.
    """

    server_round: int
    asked: Collection[ClientNode]
    at_work: Collection[ClientNode]
    online: Sequence[ClientNode]
    paused: Collection[int]
    candidates: Collection[ClientNode] = ()
    grid: Grid | None = None


class StopTraining(Exception):  # noqa: N818 (as StopIteration: no error)
    """Raised by a callback to end a run in good order after this round."""


class Callback:
    """Is told of every round; a subclass overrides what it needs.

    Each is told in the order in which the strategy has them, and all of one thing before any is
    told of the next: ``on_step`` and ``on_round``, then ``on_model``, ``on_metrics`` and
    ``on_round_end``. An exception ends the run, except for :class:`StopTraining`, which ends it in
    good order.
    """

    def on_start(self, strategy: RunningStrategy) -> None:
        """Look at the strategy before its first round; its model is the one to begin with."""

    def needs_sight(self, strategy: RunningStrategy) -> str:  # noqa: ARG002
        """Return why it cannot stand beside masked rounds; empty if it can."""
        looks = type(self).on_step is not Callback.on_step
        return f"{type(self).__name__} looks at each client's update" if looks else ""

    def admit(self, nodes: Sequence[ClientNode], server_round: int) -> Sequence[ClientNode]:  # noqa: ARG002
        """Return those of the nodes that may be drawn in a round."""
        return nodes

    def awaited(self, server_round: int) -> Mapping[int, Asked]:  # noqa: ARG002
        """Return, by node, who was asked before and is not asked now, and whose reply counts."""
        return {}

    def on_asked(self, question: Question) -> None:
        """Be told whom a round is about to ask."""

    def on_reply(self, server_round: int, node: ClientNode, *, failed: bool) -> None:
        """Be told that a reply of a client came, before it is screened; or an error in its place.

        Told at once, while others are still waited for: it must not take long.
        """

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord | ArrayRecord]:  # noqa: ARG002
        """Return what a node's next message holds beside the model and the settings."""
        return {}

    def on_replies(self, server_round: int) -> None:
        """Be told that a round's replies are read from now on: the last step's updates are lost."""

    def on_screened(self, screening: Screening, asked: Mapping[int, Asked]) -> None:
        """Take in what became of everybody whose reply counted in a round, by node."""

    def on_step(self, step: Step) -> None:
        """Take in the step that a round took; not called for a round that failed."""

    def on_round(self, report: RoundReport) -> None:
        """Take in a round's report, once its replies are combined or have failed."""

    def on_model(self, server_round: int, model: GlobalModel) -> Mapping[str, float] | None:  # noqa: ARG002
        """Look at the global model after a round; 0: before the first.

        Returns
        -------
        mapping of str to float, optional
            Metrics, which Flower's result holds as ``evaluate_metrics_serverapp``.
        """
        return None

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics that evaluation and all callbacks gave for a round's model."""

    def on_round_end(self, server_round: int) -> None:
        """Be told that all have taken in a round's metrics, and none raised an error."""

    def on_end(self) -> None:
        """Be told that there are no more rounds, whether they ended in good order or not."""
