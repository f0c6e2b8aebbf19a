"""Federations in this process, whose rounds are kept for valuations to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedif_flower.aggregators import RFA
from fedif_flower.aggregators.krum import MultiKrum
from fedif_flower.attacks import ClientRound, Colluder
from fedif_flower.attribution.credit import PastSteps
from fedif_flower.client.training import train_local
from fedif_flower.combining import combine
from fedif_flower.errors import ValuationError
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
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
from fedif_studies.audit.members import AuditMember, AuditTask


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
    length_factors: Tensor | None = None  # [m], by how much updates were shortened or lengthened

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
        masks = all_coalitions(len(self.rows)).to(self.rows)  # [2**m, m]
        losses = []
        for coefficients in masks * self.coefficients.to(self.rows):
            point = self.start + coefficients @ self.rows
            losses.append(self.validation.means(point, None, ("loss",)))
        return -torch.cat(losses).double()

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


def _fedavg(validation: Validation) -> Rule:
    return as_run(FedAvg(setup=Setup(device=validation.device)))


def _fedif(validation: Validation) -> Rule:
    return as_run(FedIF(validation, setup=Setup(device=validation.device)))


def _unbounded_fedif(validation: Validation) -> Rule:
    return as_run(FedIF(validation, stages=(), setup=Setup(device=validation.device)))


def _influence_descent(validation: Validation) -> Rule:
    return as_run(InfluenceDescent(validation, setup=Setup(device=validation.device)))


def _unbounded_descent(validation: Validation) -> Rule:
    setup = Setup(device=validation.device)
    return as_run(InfluenceDescent(validation, stages=(), setup=setup))


STRATEGIES: Mapping[str, Callable[[Validation], Rule]] = {
    "FedAvg": _fedavg,
    "FedIF": _fedif,
    "influence descent": _influence_descent,
}
# Without bounds, so that they differ by their weights alone.
RULES: Mapping[str, Callable[[Validation], Rule]] = {
    "FedAvg": _fedavg,
    "FedIF": _unbounded_fedif,
    "RFA": lambda _: RFA(),
    # The fifth that lies farthest from its neighbours is left out: two of ten.
    "Multi-Krum": lambda _: MultiKrum(malicious_fraction=0.2),
    "influence descent": _unbounded_descent,
}


def federate(
    task: AuditTask,
    members: Sequence[AuditMember],
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
    members : sequence of AuditMember
        Empty: nobody trains.
    seed : int
        The model's first parameters and the order of the members' examples.
    rule : callable
        How a round is combined; default: by FedAvg.
    per_round : int, optional
        How many members are drawn for a round, >= 1. Default: all.
    """
    model = task.new_model(seed)
    params = vector_of(model)
    if not members:
        return params, []
    past = PastSteps()
    trainers = [Trainer(task, member, model, seed) for member in members]
    weigh = rule or _fedavg(task.server.validation)
    steps: list[AuditStep] = []
    for server_round in range(1, task.config.num_server_rounds + 1):
        drawn = _draw(members, seed, server_round, per_round)
        updates = _train(members, trainers, drawn, params, seed, server_round)
        aggregation = weigh(updates)
        coefficients = aggregation.weights.double().cpu()
        if aggregation.applied is not None:
            coefficients = aggregation.applied.double().cpu()
        step = AuditStep(
            updates,
            aggregation.weights_alone.double().cpu(),
            coefficients,
            validation=task.server.validation,
            paying=task.paying,
            past=past,
            num_members=len(members),
            length_factors=aggregation.length_factors,
        )
        steps.append(step)
        received = params
        params = combine(received, updates.client_updates, coefficients)
        past = past.after(params - received)
    return params, steps


def _draw(
    members: Sequence[AuditMember], seed: int, server_round: int, per_round: int | None
) -> list[int]:
    """Return which members a round asks, in their order: those drawn who still take part."""
    order = numpy_generator("audit-drawn", seed, server_round).permutation(len(members))
    drawn = sorted(order[:per_round].tolist())
    return [index for index in drawn if members[index].takes_part(server_round)]


def _train(
    members: Sequence[AuditMember],
    trainers: Sequence[Trainer],
    drawn: Sequence[int],
    params: Tensor,
    seed: int,
    server_round: int,
) -> RoundUpdates:
    """Return the updates of those drawn, once those in league have agreed on theirs."""
    rows = torch.stack([trainers[index].update(params, server_round) for index in drawn])
    acting = [members[index] for index in drawn]
    collude(acting, params, rows, torch_generator("audit-collusion", seed, server_round))
    return RoundUpdates(
        server_round=server_round,
        client_ids=tuple(drawn),
        num_examples=torch.tensor([member.claimed for member in acting], dtype=torch.float64),
        model=ModelVectors(params, params.new_zeros(0)),
        client_updates=rows,
        squared_norms=rows.double().square().sum(dim=1),
        buffer_updates=rows.new_zeros(len(drawn), 0),
        counters=({},) * len(drawn),
    )


def collude(
    members: Sequence[AuditMember], received: Tensor, rows: Tensor, generator: torch.Generator
) -> None:
    """Replace the updates ``[m, d]`` of members in league, who share one behaviour, in place."""
    leagues: dict[int, list[int]] = {}  # Rows of members, by the behaviour that they share.
    for index, member in enumerate(members):
        if isinstance(member.behaviour, Colluder):
            leagues.setdefault(id(member.behaviour), []).append(index)
    for league in leagues.values():
        behaviour = members[league[0]].behaviour
        assert isinstance(behaviour, Colluder)
        rows[league] = behaviour.collude(received, rows[league], generator)


class Trainer:
    """A member's side: what it trains on, and what it sends."""

    def __init__(self, task: AuditTask, member: AuditMember, model: nn.Module, seed: int) -> None:
        self._member = member
        self._model = model
        self._seed = seed
        self._normalize = task.transformed
        self._training = task.config.part(TrainingConfig)
        self._memory: dict[str, Tensor] = {}
        # Data are spoilt once, by the task's seed: they stay the same whatever the run's seed.
        classes = len(task.dataset.classes)
        label_generator = torch_generator("audit-labels", task.config.seed, member.identity)
        labels = member.behaviour.poison_labels(member.labels, classes, label_generator)
        example_generator = torch_generator("audit-examples", task.config.seed, member.identity)
        self.pixels, self.labels = member.behaviour.poison_examples(
            member.pixels, labels, classes, example_generator
        )

    def generator(self, server_round: int) -> torch.Generator:
        """Return what decides the order of its examples in a round."""
        return self._generator("audit-training", server_round)

    def update(self, params: Tensor, server_round: int) -> Tensor:
        """Return the member's update ``[d]`` of ``params`` [d]."""
        behaviour = self._member.behaviour
        vector_to_parameters(params.clone(), self._model.parameters())
        pixels = behaviour.poison_inputs(
            self._model,
            self.pixels,
            self.labels,
            self._normalize,
            self._generator("audit-inputs", server_round),
        )
        inputs = self._normalize(pixels)
        generator = self.generator(server_round)
        train_local(self._model, inputs, self.labels, self._training, generator)
        client_round = ClientRound(
            received=params,
            trained=vector_of(self._model),
            server_round=server_round,
            generator=self._generator("audit-update", server_round),
            memory=self._memory,
        )
        return behaviour.poison_update(client_round) - params

    def _generator(self, purpose: str, server_round: int) -> torch.Generator:
        return torch_generator(purpose, self._seed, self._member.identity, server_round)


def vector_of(model: nn.Module) -> Tensor:
    """Return a copy of a model's parameters, ``[d]``: of the built-in ones, all are trained."""
    return parameters_to_vector(model.parameters()).detach().clone()
