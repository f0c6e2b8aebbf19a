"""Federations in this process, whose rounds are kept for valuations to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedif_flower.aggregators import RFA
from fedif_flower.attacks import ClientRound, Colluder
from fedif_flower.attribution.credit import PastSteps
from fedif_flower.client.training import train_local
from fedif_flower.errors import ValuationError
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates, combine
from fedif_flower.seeding import numpy_generator, torch_generator
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import Setup
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.influence_descent import InfluenceDescent
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.valuation import Validation
from fedif_flower.valuation.influence import Projections, project_updates
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.members import AuditTask, Member


@dataclass(frozen=True)
class AuditStep:
    """A round: its updates, the weights and coefficients they were given, and held-out data.

    ``past`` are the global steps before it; ``paying`` is held-out data by which nothing was
    weighed. ``updates.client_ids`` are places in the list of all ``num_members`` members.
    """

    updates: RoundUpdates
    weights: Tensor  # [m], float64
    coefficients: Tensor  # [m], float64
    validation: Validation
    paying: Validation
    past: PastSteps
    num_members: int

    @property
    def start(self) -> Tensor:
        """The parameters ``[d]`` before it."""
        return self.updates.global_params

    @property
    def rows(self) -> Tensor:
        """The updates ``[m, d]``."""
        return self.updates.client_updates

    @cached_property
    def taken(self) -> Tensor:
        """The step ``[d]``."""
        return combine(torch.zeros_like(self.start), self.rows, self.coefficients)

    @cached_property
    def game(self) -> Tensor:
        """What each coalition gains ``[2**m]`` if its members' parts of the step are put in."""
        parts = all_coalitions(len(self.rows)).to(self.rows) * self.coefficients.to(self.rows)
        points = (self.start + part @ self.rows for part in parts)
        found = [self.validation.means(point, None, ("loss",)) for point in points]
        return -torch.cat(found).double()

    @cached_property
    def projections(self) -> Projections:
        """Inner products and squared norms, from one gradient that all valuations share."""
        gradient = self.validation.gradient(self.start)
        return project_updates(self.rows, gradient, self.updates.squared_norms)


Rule = Callable[[RoundUpdates], Aggregation]
"""Gives a round's updates weights ``[m]``; without ``applied`` they are what is applied."""


def as_run(strategy: ScreenedStrategy) -> Rule:
    """Return a strategy's coefficients as a run of it applies them, with its bounds."""
    strategy.stages.begin(strategy.validation)

    def rule(updates: RoundUpdates) -> Aggregation:
        try:
            _, aggregation = strategy.aggregate(updates)
        except ValuationError:  # The round fails and the model stays.
            return Aggregation(torch.zeros(updates.num_clients, dtype=torch.float64))
        return aggregation

    return rule


STRATEGIES: Mapping[str, Callable[[Validation], Rule]] = {
    "FedAvg": lambda of: as_run(FedAvg(setup=Setup(device=of.device))),
    "FedIF": lambda of: as_run(FedIF(of, setup=Setup(device=of.device))),
    "influence descent": lambda of: as_run(InfluenceDescent(of, setup=Setup(device=of.device))),
}
# Without bounds, so that they differ by their weights alone.
RULES: Mapping[str, Callable[[Validation], Rule]] = {
    "FedAvg": STRATEGIES["FedAvg"],
    "FedIF": lambda of: as_run(FedIF(of, stages=(), setup=Setup(device=of.device))),
    "RFA": lambda _: RFA(),
}


def federate(
    task: AuditTask,
    members: Sequence[Member],
    *,
    seed: int,
    rule: Rule | None = None,
    per_round: int | None = None,
) -> tuple[Tensor, list[AuditStep]]:
    """Train a federation from scratch; return its last parameters ``[d]``, and its rounds.

    Parameters
    ----------
    task : AuditTask
        Model, splits, rounds and local training.
    members : sequence of Member
        Empty: nobody trains.
    seed : int
        The model's first parameters and the order of the members' examples.
    rule : callable
        How a round is combined; default: by FedAvg.
    per_round : int, optional
        How many members are drawn for a round, >= 1. Default: all.
    """
    model = task.new_model(seed)
    params, past = vector_of(model), PastSteps()
    trainers = [Trainer(task, member, model, seed) for member in members]
    claimed = torch.tensor([member.claimed for member in members], dtype=torch.float64)
    weigh, steps = rule or STRATEGIES["FedAvg"](task.server.validation), list[AuditStep]()
    for server_round in range(1, task.config.num_server_rounds + 1) if trainers else ():
        turn = numpy_generator("audit-drawn", seed, server_round).permutation(len(members))
        drawn = tuple(
            index
            for index in sorted(turn[:per_round].tolist())
            if server_round <= (members[index].rounds or server_round)
        )
        rows = torch.stack([trainers[index].update(params, server_round) for index in drawn])
        acting = [members[index] for index in drawn]
        collude(acting, params, rows, torch_generator("audit-collusion", seed, server_round))
        updates = RoundUpdates(
            server_round=server_round,
            client_ids=drawn,
            num_examples=claimed[list(drawn)],
            model=ModelVectors(params, params.new_zeros(0)),
            client_updates=rows,
            squared_norms=rows.double().square().sum(dim=1),
            buffer_updates=rows.new_zeros(len(drawn), 0),
            counters=({},) * len(drawn),
        )
        found = weigh(updates)
        weights = found.weights.double().cpu()
        coefficients = weights if found.applied is None else found.applied.double().cpu()
        judges = task.server.validation, task.paying
        steps.append(AuditStep(updates, weights, coefficients, *judges, past, len(members)))
        before, params = params, combine(params, rows, coefficients)
        past = past.after(params - before)
    return params, steps


def collude(
    members: Sequence[Member], received: Tensor, rows: Tensor, generator: torch.Generator
) -> None:
    """Replace the updates ``[m, d]`` of members in league, who share one behaviour, in place."""
    leagues: dict[int, tuple[Colluder, list[int]]] = {}
    for index, member in enumerate(members):
        if isinstance(acting := member.behaviour, Colluder):
            leagues.setdefault(id(acting), (acting, []))[1].append(index)
    for acting, own in leagues.values():
        rows[own] = acting.collude(received, rows[own], generator)


class Trainer:
    """A member's side: what it trains on, and what it sends."""

    def __init__(self, task: AuditTask, member: Member, model: nn.Module, seed: int) -> None:
        self._member, self._model, self._seed = member, model, seed
        self._normalize, classes = task.transformed, len(task.dataset.classes)
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
        vector_to_parameters(params.clone(), self._model.parameters())
        acting, ids = self._member.behaviour, (self._seed, self._member.identity, server_round)
        drawn, model = torch_generator("audit-inputs", *ids), self._model
        pixels = acting.poison_inputs(model, self.pixels, self.labels, self._normalize, drawn)
        generator = self.generator(server_round)
        train_local(model, self._normalize(pixels), self.labels, self._training, generator)
        drawn, trained = torch_generator("audit-update", *ids), vector_of(model)
        own = ClientRound(params, trained, server_round, drawn, self._memory)
        return acting.poison_update(own) - params


def vector_of(model: nn.Module) -> Tensor:
    """Return a copy of a model's parameters, ``[d]``: of the built-in ones, all are trained."""
    return parameters_to_vector(model.parameters()).detach().clone()
