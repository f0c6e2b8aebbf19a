"""Trains the federations of many coalitions from scratch at once, as one batch of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.valuation.validation import Evaluation
from fedif_studies.audit.federation import Trainer, vector_of
from fedif_studies.audit.members import AuditMember, AuditTask

_AT_ONCE = 256  # The number of coalitions that are trained as one batch.


def evaluate_coalitions(
    task: AuditTask, members: Sequence[AuditMember], masks: Tensor, *, seed: int
) -> Iterator[Evaluation]:
    """Train each coalition's own federation, and yield its figures on the test split.

    The parameters are those of :func:`train_coalitions`; there may be any number of coalitions.
    """
    for at_once in torch.split(masks, _AT_ONCE):
        for params in train_coalitions(task, members, at_once, seed=seed):
            yield task.server.test.evaluate(params)


def train_coalitions(
    task: AuditTask, members: Sequence[AuditMember], masks: Tensor, *, seed: int
) -> Tensor:
    """Return the last parameters ``[c, d]`` of each coalition's own federation.

    Up to rounding, they are those of :func:`~fedif_studies.audit.federation.federate` with FedAvg's
    weights. A member trains on the same batches in every coalition, so one pass over its examples
    trains the models of all its coalitions.

    Parameters
    ----------
    task : AuditTask
        The model, the rounds and local training.
    members : sequence of AuditMember
        The m members, all of whom take part in every round. Their attacks on labels and examples,
        which act once, are included; attacks on inputs or updates, which act in every round, are
        left out.
    masks : Tensor
        ``[c, m]``, bool: whether a member is in a coalition.
    seed : int
        Seeds the model's first parameters and the order of examples, as in ``federate``.

    Raises
    ------
    ConfigError
        If the model has dropout, since such models cannot be trained as one batch.
    """
    model = task.new_model(seed)
    config = task.config.extract(TrainingConfig)
    if _has_dropout(model):
        raise ConfigError(
            f"model = {task.config.model!r} has dropout; allowed where coalitions are trained from "
            "scratch: a model without, such as 'mlp' or 'lenet5'"
        )
    gradients = _gradients_of(model)
    trainers = [Trainer(task, member, model, seed) for member in members]
    claimed = torch.tensor([member.claimed for member in members], dtype=torch.float64)
    weights = masks * claimed  # [c, m]
    # The empty coalition has no weights, and keeps the first model.
    weights = (weights / weights.sum(dim=1, keepdim=True).clamp_min(1.0)).float()
    params = vector_of(model).repeat(len(masks), 1)  # [c, d]
    for server_round in range(1, task.config.num_server_rounds + 1):
        steps = torch.zeros_like(params)
        for index, trainer in enumerate(trainers):
            coalitions = masks[:, index].nonzero().squeeze(1)  # The member's coalitions.
            if not len(coalitions):
                continue
            inputs = task.transformed(trainer.pixels)
            received = params[coalitions]
            trained = received.clone()
            velocity = torch.zeros_like(received)
            for chosen in _batches(len(inputs), config, trainer.generator(server_round)):
                gradient = gradients(trained, inputs[chosen], trainer.labels[chosen])
                velocity.mul_(config.momentum).add_(gradient)
                trained.add_(velocity, alpha=-config.learning_rate)
            steps[coalitions] += weights[coalitions, index, None] * (trained - received)
        params += steps
    return params


def _has_dropout(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Dropout) and module.p for module in model.modules())


def _gradients_of(model: nn.Module) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function that gives gradients ``[c, d]`` at parameters ``[c, d]`` on a batch."""
    parameters = dict(model.named_parameters())
    sizes = [parameter.numel() for parameter in parameters.values()]

    def loss(vector: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        values = {}
        pieces = torch.split(vector, sizes)
        for (name, parameter), piece in zip(parameters.items(), pieces, strict=True):
            values[name] = piece.view_as(parameter)
        outputs = functional_call(model, values, (inputs,))
        return functional.cross_entropy(outputs, labels)

    return vmap(grad(loss), in_dims=(0, None, None))


def _batches(count: int, config: TrainingConfig, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the rows of each batch in the order in which ``train_local`` draws them."""
    # train_local draws a seed for dropout first; draw it too, so that the batches are the same.
    torch.randint(2**62, (), generator=generator)
    for _ in range(config.local_epochs):
        yield from torch.split(torch.randperm(count, generator=generator), config.batch_size)
