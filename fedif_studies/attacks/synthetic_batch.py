"""A synthetic batch: an attack that trains on made-up examples of every class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedif_flower.attacks.behaviour import Behaviour, Normalize
from fedif_flower.settings import Setting

_BOUND = 4.0  # The largest absolute value of a latent, which is a pixel before the sigmoid.


@dataclass
class SyntheticBatch(Behaviour):
    r"""Adds a small batch of examples of all labels, optimised anew on each received model.

    Each example is :math:`\sigma(z)`, the sigmoid of a latent z, which is moved down the received
    model's loss:

    .. math:: z \leftarrow z - \eta\, \frac{\nabla_z \ell(w_{t-1}, \sigma(z), y)}
              {\lVert \nabla_z \ell(w_{t-1}, \sigma(z), y) \rVert_\infty}

    with each entry kept in [-4, 4]. At the start, :math:`\sigma(z)` is 0.7 times the mean of the
    member's own examples of class y (of all its examples if it has none of y), plus 0.3 times noise
    drawn uniformly from [0, 1]. So a member can train on classes of which it has no data.

    Parameters
    ----------
    per_class : int
        Examples of each class, >= 1.
    steps : int
        How often z is moved in a round, >= 0.
    rate : float
        :math:`\eta` > 0.
    alone : bool
        Train on the batch alone, without the member's own examples.

    References
    ----------
    Gao et al., "On the Fragility of Data Attribution When Learning Is Distributed", 2026,
    arXiv:2605.15520. They optimise latents of a generator, for small batches of the labels that
    others lack.
    """

    per_class: Annotated[int, Setting("examples of each class", ge=1)] = 4
    steps: Annotated[int, Setting("how often they are moved in a round", ge=0)] = 10
    rate: Annotated[float, Setting("how far a latent is moved at most", gt=0)] = 0.2
    alone: bool = False
    _count = 0  # The number of examples in the batch.

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the member's examples (unless ``alone``) and, last, those of the batch."""
        examples = []
        for label in range(num_classes):
            of_class = pixels[labels == label]
            mean = (of_class if len(of_class) else pixels).mean(dim=0)
            # Without noise, all examples of a class would be the same, and stay so.
            noise = torch.rand(self.per_class, *mean.shape, generator=generator).to(pixels)
            examples.append(0.7 * mean + 0.3 * noise)
        batch = torch.cat(examples).to(pixels)
        targets = torch.arange(num_classes, device=labels.device).repeat_interleave(self.per_class)
        self._count = len(batch)
        if self.alone:
            return batch, targets
        return torch.cat([pixels, batch]), torch.cat([labels, targets])

    def poison_inputs(
        self,
        model: nn.Module,
        pixels: Tensor,
        labels: Tensor,
        normalize: Normalize,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the pixels, with those of the batch optimised on the received model."""
        batch = pixels[-self._count :]
        targets = labels[-self._count :]
        latent = torch.logit(batch, eps=1e-3).clamp(-_BOUND, _BOUND)
        was_training = model.training
        model.eval()
        for _ in range(self.steps):
            latent.requires_grad_(True)
            loss = cross_entropy(model(normalize(latent.sigmoid())), targets, reduction="sum")
            (slope,) = torch.autograd.grad(loss, latent)
            largest = slope.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
            move = self.rate * (slope / largest)
            latent = (latent.detach() - move).clamp(-_BOUND, _BOUND)
        model.train(was_training)
        return torch.cat([pixels[: -self._count], latent.detach().sigmoid()])
