"""Federations in this process, all members in every round, with valuations that look on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedif_flower.aggregators.geometric_median import geometric_median_weights
from fedif_flower.attacks import ClientRound
from fedif_flower.client.training import train_local
from fedif_flower.round import ModelVectors, RoundUpdates, combine
from fedif_flower.seeding import torch_generator
from fedif_flower.sweeps.audit.members import AuditTask, Member
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation import Validation
from fedif_flower.valuation.influence import Projections, influence_from, project_updates
from fedif_flower.valuation.ledger import ContributionLedger, min_max


@dataclass(frozen=True)
class AuditStep:
    """A round: its updates, the coefficients they were applied with, and the validation set."""

    updates: RoundUpdates
    coefficients: Tensor  # [m], float64
    validation: Validation

    @cached_property
    def projections(self) -> Projections:
        """Inner products and squared norms, from one gradient that all valuations share."""
        gradient = self.validation.gradient(self.updates.global_params)
        return project_updates(self.updates.client_updates, gradient, self.updates.squared_norms)


class Watcher(Protocol):
    """Looks at every round of a federation and values its members."""

    def take(self, step: AuditStep) -> None:
        """Look at a round."""
        ...

    @property
    def values(self) -> Tensor:
        """The members' values so far, ``[m]``; more is better."""
        ...


Rule = Callable[[RoundUpdates, Validation], Tensor]
"""Gives a round's updates coefficients ``[m]``."""


def by_examples(updates: RoundUpdates, validation: Validation) -> Tensor:  # noqa: ARG001
    """Return FedAvg's weights."""
    return updates.num_examples / updates.num_examples.sum()


def geometric_median(updates: RoundUpdates, validation: Validation) -> Tensor:
    """Return RFA's weights."""
    shares = by_examples(updates, validation)
    return geometric_median_weights(updates.client_updates, shares).double()


class ByInfluence:
    """FedIF's weights, with a ledger of its own."""

    def __init__(self, gamma: float = 0.3) -> None:
        self.ledger = ContributionLedger(gamma)

    def __call__(self, updates: RoundUpdates, validation: Validation) -> Tensor:
        """Return the weights of a round."""
        gradient = validation.gradient(updates.global_params)
        influence = influence_from(project_updates(updates.client_updates, gradient))
        self.ledger.update(updates.client_ids, min_max(influence))
        return self.ledger.weights(updates.client_ids)


RULES: Mapping[str, Callable[[], Rule]] = {
    "FedAvg": lambda: by_examples,
    "FedIF": ByInfluence,
    "RFA": lambda: geometric_median,
}


def federate(
    task: AuditTask,
    members: Sequence[Member],
    *,
    seed: int,
    rule: Rule = by_examples,
    watchers: Sequence[Watcher] = (),
) -> Tensor:
    """Train a federation from scratch and return its last parameters ``[d]``.

    Parameters
    ----------
    task : AuditTask
        Model, splits, rounds and local training.
    members : sequence of Member
        All of them take part in every round; empty: nobody trains.
    seed : int
        The model's first parameters and the order of the members' examples.
    rule : callable
        How a round is combined.
    watchers : sequence of Watcher
        Look at every round.
    """
    config = task.config
    model = task.new_model(seed)
    params = vector_of(model)
    trainers = [Trainer(task, member, model, seed) for member in members]
    claimed = torch.tensor([member.claimed for member in members], dtype=torch.float64)
    for server_round in range(1, config.num_server_rounds + 1) if trainers else ():
        rows = torch.stack([trainer.update(params, server_round) for trainer in trainers])
        updates = RoundUpdates(
            server_round=server_round,
            client_ids=tuple(range(len(members))),
            num_examples=claimed,
            model=ModelVectors(params, params.new_zeros(0)),
            client_updates=rows,
            squared_norms=rows.double().square().sum(dim=1),
            buffer_updates=rows.new_zeros(len(members), 0),
        )
        coefficients = rule(updates, task.server.validation).double().cpu()
        step = AuditStep(updates, coefficients, task.server.validation)
        for watcher in watchers:
            watcher.take(step)
        params = combine(params, rows, coefficients)
    return params


class Trainer:
    """A member's side: what it trains on, and what it sends."""

    def __init__(self, task: AuditTask, member: Member, model: nn.Module, seed: int) -> None:
        self._member, self._model, self._seed = member, model, seed
        self._normalize, classes = task.transformed, task.dataset.num_classes
        self._training = task.config.part(TrainingConfig)
        self._memory: dict[str, Tensor] = {}
        acting = member.behaviour
        ids = (task.config.seed, member.identity)
        labels = acting.poison_labels(member.labels, classes, torch_generator("audit-labels", *ids))
        self.pixels, self.labels = acting.poison_examples(
            member.pixels, labels, classes, torch_generator("audit-examples", *ids)
        )

    def generator(self, server_round: int) -> torch.Generator:
        """Return what decides the order of its examples in a round."""
        return torch_generator("audit-training", self._seed, self._member.identity, server_round)

    def update(self, params: Tensor, server_round: int) -> Tensor:
        """Return the member's update ``[d]`` of ``params`` [d]."""
        vector_to_parameters(params.clone(), _trained(self._model))
        acting, ids = self._member.behaviour, (self._seed, self._member.identity, server_round)
        pixels = acting.poison_inputs(
            self._model,
            self.pixels,
            self.labels,
            self._normalize,
            torch_generator("audit-inputs", *ids),
        )
        generator = torch_generator("audit-training", *ids)
        train_local(self._model, self._normalize(pixels), self.labels, self._training, generator)
        own = ClientRound(
            received=params,
            trained=vector_of(self._model),
            server_round=server_round,
            generator=torch_generator("audit-update", *ids),
            memory=self._memory,
        )
        return acting.poison_update(own) - params


def _trained(model: nn.Module) -> list[nn.Parameter]:
    named = dict(model.named_parameters())
    return [named[name] for name in trainable_names(model)]


def vector_of(model: nn.Module) -> Tensor:
    """Return a copy of a model's trainable parameters, ``[d]``."""
    return parameters_to_vector(_trained(model)).detach().clone()
