"""The protocol of a local method: what it adds to a client's steps, and what travels with it.

A method whose clients are told how to train, or report figures, has a :class:`Guide`.
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

Told = Mapping[str, bool | int | float | str]


class Turn(NamedTuple):
    """Who may be asked in a round, by client id, and whether all of them are."""

    members: Sequence[int]
    everyone: bool = False


class TakenIn(NamedTuple):
    """What the server made of the last vector of a client that it took in."""

    server_round: int  # The round that the vector was sent in.
    factor: float  # By which it was shortened, in [0, 1].


class Guide:
    """Tells every client the same, nothing; a subclass overrides what it needs.

    Attributes
    ----------
    noisy : frozenset of int
        The client ids of those whose labels are taken to be wrong.
    """

    weighs = False  # Whether it changes weights, by looking at updates.

    def __init__(self) -> None:
        self.noisy: frozenset[int] = frozenset()

    def turn(self, members: Sequence[int], server_round: int) -> Turn:  # noqa: ARG002
        """Return who of the members that are there may be asked."""
        return Turn(members)

    def asked(self, client_ids: Sequence[int], server_round: int) -> None:
        """Be told whom a round asks."""

    def told(self, client_id: int, server_round: int) -> Told:  # noqa: ARG002
        """Return what a client finds as ``LocalRound.told``."""
        return {}

    def expected(self, server_round: int) -> Mapping[str, int]:  # noqa: ARG002
        """Return the lengths of the arrays that a reply has to report, by name."""
        return {}

    def take(
        self, server_round: int, client_ids: Sequence[int], reports: Mapping[str, Tensor]
    ) -> None:
        """Take in what the m clients of accepted replies reported: ``[m, length]``, finite."""

    def weighted(self, updates: RoundUpdates, weights: Tensor) -> Tensor:  # noqa: ARG002
        """Return the weights ``[m]`` to use in place of the strategy's."""
        return weights

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"noisy": sorted(self.noisy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.noisy = frozenset(state["noisy"])


@dataclass(frozen=True)
class LocalRound:
    """One client's round, before it trains.

    Attributes
    ----------
    model : torch.nn.Module
        With the parameters received.
    received : Tensor
        ``[d]``: its trainable parameters.
    training : TrainingConfig
        Epochs, batch size, learning rate and momentum.
    memory : mutable mapping of str to Tensor
        What the method keeps at this client from round to round, on the CPU.
    server_round : int
        The round.
    vector : Tensor, optional
        ``[d]``: what the server sent beside the model, for a method that ``sends_vector``.
    taken_in : TakenIn, optional
        What the server made of the last vector of this client that it took in; ``None``: it took
        in none.
    told : mapping
        What the method's :class:`~fedif_flower.local_methods.Guide` tells this client.
    data : Data
        What it trains on, as the model takes it.
    """

    model: nn.Module
    received: Tensor
    training: TrainingConfig
    memory: MutableMapping[str, Tensor]
    server_round: int = 1
    vector: Tensor | None = None
    taken_in: TakenIn | None = None
    told: Told = field(default_factory=dict)
    data: Any = None


class LocalTerm:
    """What is added to each step of a client's training; entered while it trains.

    Parameters
    ----------
    gradient : Tensor, optional
        ``[d]``: added to every step's gradient.

    Attributes
    ----------
    loss_fn : callable, optional
        ``(outputs, targets)`` -> their mean loss, in place of the task's.
    proximal_mu : float
        Added to the factor of FedProx's term, >= 0.
    report : dict of str to Tensor
        What the client sends beside its model: arrays ``[n]`` that the guide expects, by name.
    """

    loss_fn: LossFunction | None = None
    proximal_mu = 0.0

    def __init__(self, gradient: Tensor | None = None) -> None:
        self.gradient = gradient
        self.steps = 0  # Taken so far.
        self.report: dict[str, Tensor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Undo what entering did to the model."""

    def loss(self) -> Tensor | None:
        """Return what is added to the loss of the batch that the model has just seen."""
        return None


class LocalMethod:
    """Plain SGD on the task's loss; a method overrides what it changes."""

    # Whether a vector [d] travels beside the model, in both directions. Clients send changes, and
    # the server sends the mean, over all members, of the changes that it has taken in so far.
    sends_vector = False
    # Whether it puts something into a client's memory.
    remembers = False

    def misfit(self, task: Task, data: Data) -> str:  # noqa: ARG002
        """Return what a task, or data of it, lack for this method; empty: nothing.

        As the end of a sentence: ``"class labels (num_classes)"``.
        """
        is_plain = type(self) is LocalMethod
        if is_plain or task.train is None:
            return ""
        return "training by SGD (no train of its own)"

    def guide(self) -> Guide | None:
        """Return a new server's half, for a method whose clients are guided or report figures."""
        return None

    def examples(self, local: LocalRound) -> Any:
        """Return what to train on, such as ``local.data`` with other labels."""
        return local.data

    def term(self, local: LocalRound) -> LocalTerm:  # noqa: ARG002
        """Return what is added to each step of a round."""
        return LocalTerm()

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> Tensor | None:  # noqa: ARG002
        """Remember what later rounds need, and return the vector ``[d]`` to send, if any.

        Parameters
        ----------
        local : LocalRound
            As :meth:`term` got it.
        term : LocalTerm
            Knows how many steps were taken.
        sent : Tensor
            ``[d]``: the trainable parameters that the client sends back.
        """
        return None

    def shortened(self, lengths: Tensor, usual_length: float) -> Tensor:  # noqa: ARG002
        """Return by which factors ``[m]`` the server takes changes in, if it ``sends_vector``.

        Parameters
        ----------
        lengths : Tensor
            ``[m]``, float64: of what the m accepted replies of a round brought.
        usual_length : float
            The median of the lengths that are not 0, of all clients of the last 20 rounds, each
            client's last (see :class:`~fedif_flower.stages.Clip`); infinity where all are 0.

        Returns
        -------
        Tensor
            ``[m]``, in [0, 1]. Each client is told its own: ``LocalRound.taken_in``.
        """
        return torch.ones_like(lengths)


def require_method_fit(method: LocalMethod, task: Task, data: Data, name: str) -> None:
    """Raise ConfigError if a method needs what a task, or data of it, do not have."""
    missing = method.misfit(task, data)
    if missing:
        raise ConfigError(
            f"local-method = {name!r} needs {missing}, which task {task.name!r} lacks"
        )
