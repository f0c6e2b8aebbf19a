"""Many coalitions' federations trained from scratch side by side, as one batch of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.config import TrainingConfig
from fedif_studies.audit.federation import Trainer, vector_of
from fedif_studies.audit.members import AuditTask, Member


def train_coalitions(
    task: AuditTask, members: Sequence[Member], masks: Tensor, *, seed: int
) -> Tensor:
    """Return the last parameters ``[c, d]`` of each coalition's own federation.

    They are those of :func:`~fedif_studies.audit.federation.federate` with FedAvg's weights
    up to rounding: members see the same batches in every coalition, so that one pass serves all
    the models.

    Parameters
    ----------
    task : AuditTask
        Model, rounds and local training.
    members : sequence of Member
        The m members; what they do to inputs and updates from round to round is left out.
    masks : Tensor
        ``[c, m]``, bool: who takes part.
    seed : int
        As in ``federate``.

    Raises
    ------
    ConfigError
        If the model has buffers or dropout: then models cannot be trained side by side.
    """
    model, config = task.new_model(seed), task.config.part(TrainingConfig)
    dropping = (m for m in model.modules() if isinstance(m, nn.Dropout) and m.p)
    if next(model.buffers(), None) is not None or next(dropping, None) is not None:
        raise ConfigError(
            f"model = {task.config.model!r} has buffers or dropout; allowed where coalitions are "
            "trained from scratch: a model without, such as 'mlp' or 'lenet5'"
        )
    gradients = _gradients_of(model)
    trainers = [Trainer(task, member, model, seed) for member in members]
    claimed = torch.tensor([member.claimed for member in members], dtype=torch.float64)
    weights = masks * claimed  # [c, m]
    weights = (weights / weights.sum(dim=1, keepdim=True).clamp_min(1.0)).float()
    params = vector_of(model).repeat(len(masks), 1)  # [c, d]
    for server_round in range(1, task.config.num_server_rounds + 1):
        steps = torch.zeros_like(params)
        for index, trainer in enumerate(trainers):
            rows = masks[:, index].nonzero().squeeze(1)
            received, inputs = params[rows], task.transformed(trainer.pixels)
            own, velocity = received.clone(), torch.zeros_like(received)
            batches = _batches(len(inputs), config, trainer.generator(server_round))
            for chosen in batches if len(rows) else ():
                found = gradients(own, inputs[chosen], trainer.labels[chosen])
                velocity.mul_(config.momentum).add_(found)
                own.add_(velocity, alpha=-config.learning_rate)
            steps[rows] += weights[rows, index, None] * (own - received)
        params += steps
    return params


def _gradients_of(model: nn.Module) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the gradients ``[c, d]`` at parameters ``[c, d]``, all on the same examples."""
    named = dict(model.named_parameters())

    def loss(flat: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        pieces = torch.split(flat, [old.numel() for old in named.values()])
        own = {
            name: piece.view_as(old)
            for (name, old), piece in zip(named.items(), pieces, strict=True)
        }
        return functional.cross_entropy(functional_call(model, own, (inputs,)), labels)

    return vmap(grad(loss), in_dims=(0, None, None))


def _batches(count: int, config: TrainingConfig, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the rows of each batch as ``train_local`` draws them."""
    torch.randint(2**62, (), generator=generator)  # What it seeds dropout with.
    for _ in range(config.local_epochs):
        yield from torch.split(torch.randperm(count, generator=generator), config.batch_size)
