"""Local SGD of many small clients at once: a two-layer perceptron each, in batched products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedif_flower.tasks.config import TrainingConfig

HIDDEN, CLASSES = 64, 10


def train_together(
    params: Tensor,
    inputs: Sequence[Tensor],
    labels: Sequence[Tensor],
    config: TrainingConfig,
    generators: Sequence[torch.Generator],
    proximal_mu: float,
) -> Tensor:
    """Return the updates ``[m, d]`` of m clients that train on their own images ``[n_i, ...]``.

    Each does as :func:`fedif_flower.client.training.train_local` does: every example once in an
    epoch, in an order of its own, batches of B, SGD with momentum.
    """
    flat = [images.flatten(1) for images in inputs]
    m, pixels, size = len(flat), flat[0].shape[1], config.batch_size
    most = max(len(images) for images in flat)
    padded = -(-most // size) * size
    x = torch.stack([functional.pad(images, (0, 0, 0, most - len(images))) for images in flat])
    y = torch.stack([functional.pad(own, (0, most - len(own))) for own in labels])
    models = params.repeat(m, 1).requires_grad_()  # [m, d]
    velocity, client = torch.zeros_like(models), torch.arange(m).unsqueeze(1)
    for _ in range(config.local_epochs):
        orders = [
            torch.randperm(len(own), generator=generator)
            for own, generator in zip(labels, generators, strict=True)
        ]
        order = torch.stack([functional.pad(own, (0, padded - len(own))) for own in orders])
        counted = torch.stack([torch.arange(padded) < len(own) for own in orders])
        for start in range(0, padded, size):
            rows, present = order[:, start : start + size], counted[:, start : start + size]
            loss = _loss(models, x[client, rows], y[client, rows], present, pixels)
            (gradient,) = torch.autograd.grad(loss, models)
            with torch.no_grad():
                gradient += proximal_mu * (models - params)
                active = present.any(dim=1, keepdim=True)  # [m, 1]
                velocity = torch.where(active, config.momentum * velocity + gradient, velocity)
                models -= config.learning_rate * active * velocity
    return models.detach() - params


def _loss(models: Tensor, x: Tensor, y: Tensor, present: Tensor, pixels: int) -> Tensor:
    """Return the sum over clients of the mean loss over what is present in a batch."""
    sizes = [HIDDEN * pixels, HIDDEN, CLASSES * HIDDEN, CLASSES]
    first, first_bias, second, second_bias = models.split(sizes, dim=1)
    m = len(models)
    hidden = torch.baddbmm(first_bias.unsqueeze(1), x, first.view(m, HIDDEN, pixels).mT).relu()
    logits = torch.baddbmm(second_bias.unsqueeze(1), hidden, second.view(m, CLASSES, HIDDEN).mT)
    losses = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    share = present / present.sum(dim=1, keepdim=True).clamp_min(1)  # [m, B]
    return (losses.view_as(share) * share).sum()
