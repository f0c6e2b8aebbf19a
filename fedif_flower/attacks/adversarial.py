"""Adversarial samples: a client trains on examples made to fool the model it received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.attacks.assignment import choose
from fedif_flower.attacks.behaviour import Behaviour, Normalize, Ratio, lacks_images
from fedif_flower.settings import Setting
from fedif_flower.tasks.modules import (
    image_format,
    module_mode,
    seeded_randomness,
    to_memory_format,
)
from fedif_flower.tasks.task import Task

_CHUNK = 128  # Examples attacked at once: enough to fill the cores, few enough for the cache.


@dataclass
class AdversarialSamples(Behaviour):
    r"""Replaces a share of its samples by PGD examples against the received model, in every round.

    .. math::
        x_0 = \Pi(x + U(-\epsilon, \epsilon)), \quad
        x_{k+1} = \Pi(x_k + \alpha \operatorname{sign} \nabla_x \ell(f(x_k), y))

    with x an image, y its label, f the received model, :math:`\ell` the cross-entropy, and
    :math:`\Pi` the projection onto :math:`\{x': \lVert x' - x \rVert_\infty \le \epsilon\}
    \cap [0, 1]`.

    Parameters
    ----------
    ratio : float
        Share of the samples that is replaced, in [0, 1] (the paper's ``n_ratio``).
    epsilon : float
        :math:`\epsilon` in [0, 1], in units of the pixel range.
    step_size : float
        :math:`\alpha` in (0, 1], likewise.
    steps : int
        Gradient steps, >= 1.

    References
    ----------
    Madry et al., 2018, section 2.1.
    """

    ratio: Ratio
    epsilon: Annotated[float, Setting("radius, in units of the pixel range", ge=0, le=1)] = 0.03
    step_size: Annotated[float, Setting("step, in units of the pixel range", gt=0, le=1)] = 0.01
    steps: Annotated[int, Setting("gradient steps per sample", ge=1)] = 20

    def misfit(self, task: Task) -> str:
        """Return that it needs classes and an input range, if the task lacks them."""
        return lacks_images(task)

    def poison_inputs(
        self,
        model: nn.Module,
        pixels: Tensor,
        labels: Tensor,
        normalize: Normalize,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the pixels, with a share of the images replaced by adversarial ones.

        The model is in eval mode meanwhile. Its parameters, their gradients and the modes of its
        modules are left as they were.
        """
        chosen = choose(len(pixels), self.ratio, generator).to(pixels.device)  # [k]
        poisoned = pixels.clone()
        clean = pixels[chosen]  # [k, c, h, w]
        classes = labels[chosen]  # [k]
        start = torch.rand(clean.shape, generator=generator, dtype=clean.dtype).to(clean.device)
        start.mul_(2 * self.epsilon).add_(clean - self.epsilon)
        lowest = (clean - self.epsilon).clamp_(min=0)
        highest = (clean + self.epsilon).clamp_(max=1)
        memory_format = image_format(model, clean)
        with module_mode(model, training=False), seeded_randomness(0, pixels.device):
            for first in range(0, len(chosen), _CHUNK):
                part = slice(first, first + _CHUNK)
                low = to_memory_format(lowest[part], memory_format)
                high = to_memory_format(highest[part], memory_format)
                current = to_memory_format(start[part], memory_format)
                current.clamp_(low, high)
                for _ in range(self.steps):
                    gradient = _pixel_gradient(model, current, classes[part], normalize)
                    # In place: a new tensor of one-channel images would lose the memory layout.
                    current.add_(gradient.sign_(), alpha=self.step_size).clamp_(low, high)
                poisoned[chosen[part]] = current
        return poisoned


def _pixel_gradient(
    model: nn.Module, pixels: Tensor, labels: Tensor, normalize: Normalize
) -> Tensor:
    """Return the gradient of each image's cross-entropy in its pixels, ``[n, c, h, w]``."""
    with torch.enable_grad():
        pixels = pixels.detach().requires_grad_()
        # The sum, not the mean: each example's gradient then does not depend on the chunk.
        loss = functional.cross_entropy(model(normalize(pixels)), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient
