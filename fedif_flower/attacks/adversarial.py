"""Adversarial samples: a client trains on examples made to fool the model it received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.attacks.assignment import choose
from fedif_flower.attacks.behaviour import Behaviour, Normalize, lacks_images
from fedif_flower.settings import Setting
from fedif_flower.tasks.modules import (
    frozen_parameters,
    image_format,
    module_mode,
    to_memory_format,
)
from fedif_flower.tasks.task import Task

_CHUNK = 128  # Examples attacked together: enough to fill the cores, few enough for the cache.


def pgd(
    model: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    normalize: Normalize,
    generator: torch.Generator,
    *,
    epsilon: float = 0.03,
    step_size: float = 0.01,
    steps: int = 20,
) -> Tensor:
    r"""Make examples that raise the model's loss by projected gradient descent.

    .. math::
        x_0 = \Pi(x + U(-\epsilon, \epsilon)), \quad
        x_{k+1} = \Pi(x_k + \alpha \operatorname{sign} \nabla_x \ell(f(x_k), y))

    with :math:`\Pi` the projection onto :math:`\{x': \lVert x' - x \rVert_\infty \le \epsilon\}
    \cap [0, 1]` and :math:`\ell` the cross-entropy. The model is in eval mode meanwhile; its
    parameters, their gradients and its modes are left as they were.

    Parameters
    ----------
    model : torch.nn.Module
        f, on the pixels' device, taking normalised images.
    pixels : Tensor
        ``[n, c, h, w]`` in [0, 1]: x.
    labels : Tensor
        ``[n]`` int64: y.
    normalize : callable
        Pixels -> what the model takes.
    generator : torch.Generator
        On the CPU, for the random start.
    epsilon : float
        :math:`\epsilon` >= 0, in units of the pixel range.
    step_size : float
        :math:`\alpha` > 0, likewise.
    steps : int
        Gradient steps, >= 0.

    Returns
    -------
    Tensor
        ``[n, c, h, w]`` in [0, 1].

    References
    ----------
    Madry et al., 2018, section 2.1.
    """
    start = torch.rand(pixels.shape, generator=generator, dtype=pixels.dtype).to(pixels.device)
    start.mul_(2 * epsilon).add_(pixels - epsilon)
    lower, upper = (pixels - epsilon).clamp_(min=0), (pixels + epsilon).clamp_(max=1)
    attacked, memory_format = torch.empty_like(pixels), image_format(model, pixels)
    with module_mode(model, training=False), frozen_parameters(model):
        for first in range(0, len(pixels), _CHUNK):
            part = slice(first, first + _CHUNK)
            low, high, current = (
                to_memory_format(bound[part], memory_format) for bound in (lower, upper, start)
            )
            current.clamp_(low, high)
            for _ in range(steps):
                gradient = _pixel_gradient(model, current, labels[part], normalize)
                # In place: a new tensor of one-channel images would lose the memory layout.
                current.add_(gradient.sign_(), alpha=step_size).clamp_(low, high)
            attacked[part] = current
    return attacked


def _pixel_gradient(
    model: nn.Module, pixels: Tensor, labels: Tensor, normalize: Normalize
) -> Tensor:
    with torch.enable_grad():
        pixels = pixels.detach().requires_grad_()
        # The sum, not the mean: each example's gradient then does not depend on the chunk.
        loss = functional.cross_entropy(model(normalize(pixels)), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient


@dataclass
class AdversarialSamples(Behaviour):
    """Replaces a share of its samples by PGD examples against the received model, every round.

    Parameters
    ----------
    ratio : float
        Share of the samples that is replaced, in [0, 1] (the paper's ``n_ratio``).
    epsilon, step_size, steps
        As in :func:`pgd`.
    """

    ratio: float
    epsilon: Annotated[float, Setting("radius, in units of the pixel range", ge=0, le=1)] = 0.03
    step_size: Annotated[float, Setting("step, in units of the pixel range", gt=0, le=1)] = 0.01
    steps: Annotated[int, Setting("gradient steps per sample", ge=1)] = 20

    def misfit(self, task: Task) -> str:
        """Return that it stays in the range of inputs, and raises the cross-entropy."""
        return lacks_images(task)

    def poison_inputs(
        self,
        model: nn.Module,
        pixels: Tensor,
        labels: Tensor,
        normalize: Normalize,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the pixels with a share of the images attacked (see :func:`pgd`)."""
        chosen = choose(len(pixels), self.ratio, generator).to(pixels.device)  # [k]
        poisoned = pixels.clone()
        poisoned[chosen] = pgd(
            *(model, pixels[chosen], labels[chosen], normalize, generator),
            epsilon=self.epsilon,
            step_size=self.step_size,
            steps=self.steps,
        )
        return poisoned
