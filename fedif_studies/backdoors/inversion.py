"""Trigger inversion: the smallest patch with which a model takes any image for a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.batches import tensor_pair
from fedif_flower.valuation.validation import Validation

_ENOUGH = 0.95  # Of a batch that is to get the class.
_BATCH = 32
_STEP = 0.1  # Adam's.
_PENALTY, _DEARER, _CHEAPER = 0.01, 1.2, 1 / 1.3
_LEAST_PENALTY, _MOST_PENALTY = 1e-4, 10.0


class Triggers(NamedTuple):
    """A patch for each class: masks ``[C, 1, h, w]`` in [0, 1] and patterns ``[C, c, h, w]``."""

    masks: Tensor
    patterns: Tensor

    @property
    def sizes(self) -> Tensor:
        """How many pixels each mask covers, ``[C]``."""
        return self.masks.flatten(1).sum(dim=1)

    def stamp(self, inputs: Tensor, label: int) -> Tensor:
        r"""Return images ``[n, c, h, w]`` with a class's patch, :math:`(1 - m) x + m p`."""
        mask, pattern = self.masks[label], self.patterns[label]
        return (1 - mask) * inputs + mask * pattern


def held_out_images(validation: Validation, who: str) -> tuple[Tensor, Tensor]:
    """Return a validation set's images ``[n, c, h, w]``, as the model takes them, and classes.

    Raises
    ------
    ConfigError
        Naming ``who`` needs them, if it is not of images with classes.
    """
    contents = [batch.content for batch in validation.batches]  # Loaders give lists.
    pairs = [tensor_pair(tuple(part) if isinstance(part, list) else part) for part in contents]
    if "accuracy" not in validation.metrics or not all(p and p[0].dim() == 4 for p in pairs):
        raise ConfigError(
            f"{who} needs a validation set of images [n, channels, height, width] with classes"
        )
    inputs, targets = zip(*filter(None, pairs), strict=True)
    return torch.cat(inputs), torch.cat(targets)


def invert_triggers(
    model: Callable[[Tensor], Tensor],
    inputs: Tensor,
    num_classes: int,
    *,
    steps: int = 100,
    generator: torch.Generator | None = None,
) -> Triggers:
    r"""Look for the smallest patch with which images are taken for a class, for every class.

    .. math:: \min_{m, p} \operatorname{mean}_x \operatorname{CE}\big(f((1 - m) x + m p), y\big)
              + \lambda \lVert m \rVert_1

    by Adam on the logits of m and p, 32 images a step. :math:`\lambda` is raised where 95 % of
    these get the class, else lowered; the smallest mask with which so many did is returned, or the
    last one. p stays in the range that the channel has in ``inputs``. A class with a much smaller
    mask than others has a backdoor, or is one for which little is needed.

    Parameters
    ----------
    model : callable
        f, from images ``[n, c, h, w]`` to logits ``[n, C]``; only ``inputs`` get gradients.
    inputs : Tensor
        ``[n, c, h, w]``: x, n >= 1.
    num_classes : int
        C >= 2.
    steps : int
        >= 1; each passes 32 C images forward and back.
    generator : torch.Generator, optional
        On the CPU, for the images of a step.

    References
    ----------
    Wang et al., "Neural Cleanse: Identifying and Mitigating Backdoor Attacks in Neural Networks",
    IEEE S&P 2019, section IV.
    """
    lowest, highest = (
        bound(inputs.transpose(0, 1).flatten(1), dim=1)[:, None, None]
        for bound in (torch.amin, torch.amax)
    )  # [c, 1, 1]
    channels, height, width = inputs.shape[1:]
    logits = inputs.new_zeros(num_classes, 1 + channels, height, width)
    logits.requires_grad_()
    adam = torch.optim.Adam([logits], _STEP, betas=(0.5, 0.9))
    found, sizes = logits.detach().clone(), logits.new_full((num_classes,), torch.inf)
    penalty = logits.new_full((num_classes,), _PENALTY)
    labels = torch.arange(num_classes, device=inputs.device).repeat_interleave(_BATCH)  # [C b]

    def patches(of: Tensor) -> Triggers:
        shares = of.sigmoid()
        return Triggers(shares[:, :1], lowest + (highest - lowest) * shares[:, 1:])

    for _ in range(steps):
        rows = torch.randint(len(inputs), (_BATCH,), generator=generator).to(inputs.device)
        with torch.enable_grad():
            masks, patterns = patches(logits)
            # [C, b, c, h, w]
            stamped = (1 - masks)[:, None] * inputs[rows] + (masks * patterns)[:, None]
            answers = model(stamped.flatten(0, 1))  # [C b, C]
            losses = functional.cross_entropy(answers, labels, reduction="none")
            covered = Triggers(masks, patterns).sizes  # [C]
            total = losses.sum() / _BATCH + penalty @ covered
            (logits.grad,) = torch.autograd.grad(total, logits)
        taken = (answers.detach().argmax(dim=1) == labels).view(num_classes, _BATCH)
        works = taken.to(logits).mean(dim=1) >= _ENOUGH  # [C]
        smaller = works & (covered.detach() < sizes)
        sizes = torch.where(smaller, covered.detach(), sizes)
        kept = smaller | sizes.isinf()
        found[kept] = logits.detach()[kept]
        penalty = torch.where(works, penalty * _DEARER, penalty * _CHEAPER)
        penalty = penalty.clamp(_LEAST_PENALTY, _MOST_PENALTY)
        adam.step()
    return patches(found)
