"""Federations in this process, whose rounds are kept so that valuations can be compared."""

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
    """A round of an audited federation, with m participants.

    Attributes
    ----------
    updates : RoundUpdates
        The round's updates. ``updates.client_ids`` are indices into the list of all members.
    weights : Tensor
        ``[m]``, float64: the weights, without what only changes the lengths of updates.
    coefficients : Tensor
        ``[m]``, float64: what the updates were multiplied by in the step.
    validation : Validation
        The held-out data that the rule weighs by.
    paying : Validation
        Other held-out data, by which nothing was weighed.
    past : PastSteps
        The global steps before this one.
    num_members : int
        The number of members of the federation, >= m.
    length_factors : Tensor, optional
        ``[m]``: by how much updates were shortened or lengthened; ``None`` if none was.
    """

    updates: RoundUpdates
    weights: Tensor  # [m], float64
    coefficients: Tensor  # [m], float64
    validation: Validation
    paying: Validation
    past: PastSteps
    num_members: int
    length_factors: Tensor | None = None  # [m]

    @property
    def start(self) -> Tensor:
        """The parameters ``[d]`` before the step."""
        return self.updates.global_params

    @property
    def rows(self) -> Tensor:
        """The updates ``[m, d]``."""
        return self.updates.client_updates

    @cached_property
    def vector(self) -> Tensor:
        """The step ``[d]``: the sum of the updates times their coefficients."""
        return combine(torch.zeros_like(self.start), self.rows, self.coefficients)

    @cached_property
    def game(self) -> Tensor:
        """Minus the loss ``[2**m]`` after each coalition's part of the step, on validation data.

        A coalition's part is the sum of its members' updates times their coefficients.
        """
        masks = all_coalitions(len(self.rows)).to(self.rows)  # [2**m, m]
        losses = []
        for coefficients in masks * self.coefficients.to(self.rows):
            point = self.start + coefficients @ self.rows
            losses.append(self.validation.means(point, None, ("loss",)))
        return -torch.cat(losses).double()

    @cached_property
    def projections(self) -> Projections:
        """The updates' inner products with the gradient, and squared norms, taken only once."""
        gradient = self.validation.gradient(self.start)
        return project_updates(self.rows, gradient, self.updates.squared_norms)


Rule = Callable[[RoundUpdates], Aggregation]
"""Gives a round's updates weights ``[m]``, which are their coefficients if ``applied`` is None."""


def as_run(strategy: ScreenedStrategy) -> Rule:
    """Return a rule that aggregates a round as a run with this strategy does, bounds included."""
    strategy.stages.begin(strategy.validation)

    def rule(updates: RoundUpdates) -> Aggregation:
        try:
            _, aggregation = strategy.aggregate(updates)
        except ValuationError:  # In a run, the round fails and the model stays as it is.
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
# Rules without bounds, so that they differ in their weights alone.
RULES: Mapping[str, Callable[[Validation], Rule]] = {
    "FedAvg": _fedavg,
    "FedIF": _unbounded_fedif,
    "RFA": lambda _: RFA(),
    # The fifth of the updates that is farthest from its neighbours is left out: two of ten.
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
        The model, the splits, the rounds and local training.
    members : sequence of AuditMember
        The members; without any, the model is not trained.
    seed : int
        Seeds the model's first parameters, the order of the members' examples, and who is drawn.
    rule : callable, optional
        Weighs a round's updates; by default FedAvg.
    per_round : int, optional
        How many members are drawn for a round, >= 1; by default all.
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
    """Return the members of a round, in their order: those who are drawn and still take part."""
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
    """Return the updates of the members drawn, after colluding members have changed theirs."""
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
    """Replace, in place, the rows of updates ``[m, d]`` that belong to colluding members.

    Members collude if they share one :class:`Colluder` object.
    """
    leagues: dict[int, list[int]] = {}  # The members' rows, by the id of the shared object.
    for index, member in enumerate(members):
        if isinstance(member.behaviour, Colluder):
            leagues.setdefault(id(member.behaviour), []).append(index)
    for league in leagues.values():
        behaviour = members[league[0]].behaviour
        assert isinstance(behaviour, Colluder)
        rows[league] = behaviour.collude(received, rows[league], generator)


class Trainer:
    """The client side of a member: its data, as its behaviour changes them, and its updates.

    Parameters
    ----------
    task : AuditTask
        The model's inputs, the classes and local training.
    member : AuditMember
        The member.
    model : nn.Module
        The model to train. All members of a federation use the same one, one after the other.
    seed : int
        The federation's seed.
    """

    def __init__(self, task: AuditTask, member: AuditMember, model: nn.Module, seed: int) -> None:
        self._member = member
        self._model = model
        self._seed = seed
        self._normalize = task.transformed
        self._training = task.config.extract(TrainingConfig)
        self._memory: dict[str, Tensor] = {}
        # Labels and examples are poisoned once, by the task's seed, so that they are the same in
        # federations of all seeds.
        classes = len(task.dataset.classes)
        label_generator = torch_generator("audit-labels", task.config.seed, member.identity)
        labels = member.behaviour.poison_labels(member.labels, classes, label_generator)
        example_generator = torch_generator("audit-examples", task.config.seed, member.identity)
        self.pixels, self.labels = member.behaviour.poison_examples(
            member.pixels, labels, classes, example_generator
        )

    def generator(self, server_round: int) -> torch.Generator:
        """Return the generator of the order of its examples in a round."""
        return self._generator("audit-training", server_round)

    def update(self, params: Tensor, server_round: int) -> Tensor:
        """Return the update ``[d]`` that the member sends once it has received ``params`` [d]."""
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
    """Return a copy of a model's parameters, ``[d]``; in the built-in models all are trained."""
    return parameters_to_vector(model.parameters()).detach().clone()
