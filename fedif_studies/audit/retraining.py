"""Many coalitions' federations trained from scratch side by side, as one batch of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import trainable_names
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
    config = task.config
    model = task.new_model(seed)
    _require_plain(model, config.model)
    trainers = [Trainer(task, member, model, seed) for member in members]
    claimed = torch.tensor([member.claimed for member in members], dtype=torch.float64)
    weights = masks * claimed  # [c, m]
    weights = (weights / weights.sum(dim=1, keepdim=True).clamp_min(1.0)).float()
    batched = _BatchedTraining(model, config.part(TrainingConfig))
    params = vector_of(model).repeat(len(masks), 1)  # [c, d]
    for server_round in range(1, config.num_server_rounds + 1):
        steps = torch.zeros_like(params)
        for index, trainer in enumerate(trainers):
            rows = masks[:, index].nonzero().squeeze(1)
            if len(rows):
                inputs = task.transformed(trainer.pixels)
                generator = trainer.generator(server_round)
                update = batched.update(params[rows], inputs, trainer.labels, generator)
                steps[rows] += weights[rows, index, None] * update
        params += steps
    return params


class _BatchedTraining:
    """Local training of several models on the same examples in the same order."""

    def __init__(self, model: nn.Module, config: TrainingConfig) -> None:
        self._config = config
        named = dict(model.named_parameters())
        self._names = trainable_names(model)
        self._shapes = [named[name].shape for name in self._names]

        def loss(flat: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
            pieces = torch.split(flat, [shape.numel() for shape in self._shapes])
            shaped = (piece.view(s) for piece, s in zip(pieces, self._shapes, strict=True))
            own = dict(zip(self._names, shaped, strict=True))
            return functional.cross_entropy(functional_call(model, own, (inputs,)), labels)

        self._gradients = vmap(grad(loss), in_dims=(0, None, None))

    def update(
        self, received: Tensor, inputs: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the updates ``[c, d]`` of received parameters ``[c, d]``."""
        config, params = self._config, received.clone()
        velocity = torch.zeros_like(params)
        for chosen in _batches(len(labels), config, generator):
            gradients = self._gradients(params, inputs[chosen], labels[chosen])
            velocity.mul_(config.momentum).add_(gradients)
            params.add_(velocity, alpha=-config.learning_rate)
        return params - received


def _batches(count: int, config: TrainingConfig, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the rows of each batch as ``train_local`` draws them."""
    torch.randint(2**62, (), generator=generator)  # What it seeds dropout with.
    for _ in range(config.local_epochs):
        yield from torch.split(torch.randperm(count, generator=generator), config.batch_size)


def _require_plain(model: nn.Module, name: str) -> None:
    """Raise ConfigError unless models can be trained side by side."""
    if any(True for _ in model.buffers()) or any(
        isinstance(module, nn.Dropout) and module.p for module in model.modules()
    ):
        raise ConfigError(
            f"model = {name!r} has buffers or dropout; allowed where coalitions are trained from "
            "scratch: a model without, such as 'mlp' or 'lenet5'"
        )
