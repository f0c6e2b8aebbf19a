"""The base classes of local methods: what a method adds to a client's steps, sends and gets.

A method has a :class:`Guide` on the server if the server tells its clients how to train, or if they
report figures to the server.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError
from fedif_flower.round import RoundUpdates
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Data, LossFunction, Task

Instructions = Mapping[str, bool | int | float | str]


class Turn(NamedTuple):
    """The clients that a round may ask, by client id, and whether it asks all of them."""

    members: Sequence[int]
    everyone: bool = False  # If not, the strategy draws some of them.


class TakenIn(NamedTuple):
    """Which vector of a client the server took in last, and how much of it."""

    server_round: int  # The round in which the client sent the vector.
    factor: float  # The factor in [0, 1] by which the server multiplied the vector.


class Guide:
    """The server's half of a local method; this one tells clients nothing.

    A subclass overrides what it needs.

    Attributes
    ----------
    noisy : frozenset of int
        Ids of the clients whose labels the guide takes to be wrong.
    """

    weighs = False  # Whether the guide changes weights, and looks at updates for that.

    def __init__(self) -> None:
        self.noisy: frozenset[int] = frozenset()

    def choose_members(self, members: Sequence[int], server_round: int) -> Turn:  # noqa: ARG002
        """Return which of the available members the round may ask; here all of them."""
        return Turn(members)

    def note_asked(self, client_ids: Sequence[int], server_round: int) -> None:
        """Take note of the clients that a round asks."""

    def instruct(self, client_id: int, server_round: int) -> Instructions:  # noqa: ARG002
        """Return what the server sends to a client (its ``LocalRound.instructions``)."""
        return {}

    def report_lengths(self, server_round: int) -> Mapping[str, int]:  # noqa: ARG002
        """Return the length of each array that a reply has to report, by name."""
        return {}

    def take(
        self, server_round: int, client_ids: Sequence[int], reports: Mapping[str, Tensor]
    ) -> None:
        """Take in the reports of a round's m accepted replies.

        Parameters
        ----------
        server_round : int
            The round.
        client_ids : sequence of int
            The m clients.
        reports : mapping of str to Tensor
            The arrays reported, ``[m, length]`` each, finite, by name.
        """

    def reweigh(self, updates: RoundUpdates, weights: Tensor) -> Tensor:  # noqa: ARG002
        """Return the weights ``[m]`` that replace the strategy's; called if the guide ``weighs``.

        Parameters
        ----------
        updates : RoundUpdates
            The round's m updates.
        weights : Tensor
            ``[m]``: the strategy's weights.
        """
        return weights

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, for a run that goes on."""
        return {"noisy": sorted(self.noisy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self.noisy = frozenset(state["noisy"])


@dataclass(frozen=True)
class LocalRound:
    """What a client knows of its round before it trains.

    Attributes
    ----------
    model : torch.nn.Module
        The model with the parameters that the client received.
    received : Tensor
        ``[d]``: the trainable parameters that the client received.
    training : TrainingConfig
        Epochs, batch size, learning rate and momentum.
    memory : mutable mapping of str to Tensor
        Tensors that the method keeps at this client from round to round, on the CPU.
    server_round : int
        The round.
    vector : Tensor, optional
        ``[d]``: the vector that the server sent beside the model, for a method that
        ``sends_vector``.
    taken_in : TakenIn, optional
        Which vector of this client the server took in last, and how much of it; ``None``: it has
        taken in none.
    instructions : mapping
        What the method's :class:`~fedif_flower.local_methods.Guide` tells this client.
    data : Data
        The data that the client trains on, with the inputs that the model takes.
    """

    model: nn.Module
    received: Tensor
    training: TrainingConfig
    memory: MutableMapping[str, Tensor]
    server_round: int = 1
    vector: Tensor | None = None
    taken_in: TakenIn | None = None
    instructions: Instructions = field(default_factory=dict)
    data: Any = None


class LocalTerm:
    """What a local method adds to each step of a client's training.

    The term is a context manager: training runs inside it.

    Parameters
    ----------
    gradient : Tensor, optional
        ``[d]``: added to every step's gradient.

    Attributes
    ----------
    loss_fn : callable, optional
        ``(outputs, targets)`` -> their mean loss; replaces the task's loss.
    proximal_mu : float
        Added to the factor of FedProx's proximal term, >= 0.
    steps : int
        How many steps training has taken so far.
    report : dict of str to Tensor
        What the client sends beside its model: arrays ``[n]`` that the guide expects, by name.
    """

    loss_fn: LossFunction | None = None
    proximal_mu = 0.0

    def __init__(self, gradient: Tensor | None = None) -> None:
        self.gradient = gradient
        self.steps = 0
        self.report: dict[str, Tensor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Undo what entering did to the model."""

    def loss(self) -> Tensor | None:
        """Return a scalar to add to the loss of the batch that the model has just seen, if any."""
        return None


class LocalMethod:
    """Plain SGD on the task's loss.

    Other methods are subclasses that override what they change.
    """

    # Whether a vector [d] travels beside the model in both directions. Clients send changes. The
    # server sends the sum of the changes it has taken in so far, divided by the number of members.
    sends_vector = False
    # Whether the method puts something into a client's memory.
    remembers = False

    def misfit(self, task: Task, data: Data) -> str:  # noqa: ARG002
        """Return what this method needs and the task or its data do not have; empty: nothing.

        An error message puts it behind "needs": ``"class labels (num_classes)"``.
        """
        is_plain = type(self) is LocalMethod
        if is_plain or task.train is None:
            return ""
        return "training by SGD (no train of its own)"

    def guide(self) -> Guide | None:
        """Return a new guide, the method's half on the server; ``None`` if it needs none."""
        return None

    def examples(self, local: LocalRound) -> Any:
        """Return the data to train on, such as ``local.data`` with other labels."""
        return local.data

    def term(self, local: LocalRound) -> LocalTerm:  # noqa: ARG002
        """Return what is added to each step of the round."""
        return LocalTerm()

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> Tensor | None:  # noqa: ARG002
        """Remember what later rounds need, and return the vector ``[d]`` to send, if any.

        Parameters
        ----------
        local : LocalRound
            The round that :meth:`term` got.
        term : LocalTerm
            The term that :meth:`term` returned; it knows how many steps were taken.
        sent : Tensor
            ``[d]``: the trainable parameters that the client sends back.
        """
        return None

    def shortened(self, lengths: Tensor, usual_length: float) -> Tensor:  # noqa: ARG002
        """Return the factors ``[m]`` by which the server multiplies the vectors of a round.

        It is called for a method that ``sends_vector``.

        Parameters
        ----------
        lengths : Tensor
            ``[m]``, float64: the Euclidean lengths of the vectors in the round's m accepted
            replies.
        usual_length : float
            The median of the clients' latest lengths, over all clients of the last 20 rounds.
            Lengths of 0 do not count; if all are 0, it is infinity (see
            :class:`~fedif_flower.stages.Clip`).

        Returns
        -------
        Tensor
            ``[m]``, in [0, 1]. Each client is told its own factor in ``LocalRound.taken_in``.
        """
        return torch.ones_like(lengths)


def require_method_fit(method: LocalMethod, task: Task, data: Data, name: str) -> None:
    """Raise ConfigError if a method needs something that the task or its data do not have."""
    missing = method.misfit(task, data)
    if missing:
        raise ConfigError(
            f"local-method = {name!r} needs {missing}, which task {task.name!r} lacks"
        )
