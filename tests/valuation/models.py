"""Models as vectors, and a few examples of two classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

LABELS = torch.tensor([0, 1, 1, 0, 1])
ROWS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
EXAMPLES = [{"img": row, "label": label} for row, label in zip(ROWS, LABELS, strict=True)]


def flat(model: nn.Module) -> Tensor:
    """Return the parameters ``[d]``."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def build(constructor, *arguments) -> nn.Module:
    """Make a model whose parameters are always the same."""
    torch.manual_seed(0)
    return constructor(*arguments)


def whole(model: nn.Module, loss_fn, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    """Return loss and gradient ``[d]`` on all of the data at once."""
    loss = loss_fn(model(inputs), targets)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), torch.cat([gradient.flatten() for gradient in found])


def dict_loss(model, batch):
    """A user's loss on :data:`EXAMPLES`."""
    return functional.cross_entropy(model(batch["img"]), batch["label"]), len(batch["label"])
