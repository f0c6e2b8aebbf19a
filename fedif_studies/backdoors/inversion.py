"""Trigger inversion: finds the smallest patch with which a model takes any image for a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedif_flower.errors import ConfigError
from fedif_flower.tasks.batches import tensor_pair
from fedif_flower.valuation.objective import are_right
from fedif_flower.valuation.validation import Validation

_ENOUGH = 0.95  # A patch works if this share of a batch is taken for the class.
_BATCH = 32
_STEP = 0.1  # Adam's learning rate.
# The penalty on a mask's size: its first value, the factors that raise and lower it, its bounds.
_PENALTY = 0.01
_DEARER = 1.2
_CHEAPER = 1 / 1.3
_LEAST_PENALTY = 1e-4
_MOST_PENALTY = 10.0


class Triggers(NamedTuple):
    """A patch for each class: a mask in [0, 1] and a pattern.

    ``masks`` is ``[C, 1, h, w]``, ``patterns`` is ``[C, c, h, w]``.
    """

    masks: Tensor
    patterns: Tensor

    @property
    def sizes(self) -> Tensor:
        """The number of pixels that each mask covers, ``[C]``, as the sum of its values."""
        return self.masks.flatten(1).sum(dim=1)

    @property
    def smallest(self) -> int:
        """The class with the smallest mask. If any class has a backdoor, it is most likely this."""
        return int(self.sizes.argmin())

    def share_of_median(self, label: int) -> float:
        """Return the size of a class's mask, divided by the median size.

        For an even number of classes, the median is the smaller one of the two in the middle.
        """
        return float(self.sizes[label] / self.sizes.median())

    def stamp(self, inputs: Tensor, label: int) -> Tensor:
        r"""Return images ``[n, c, h, w]`` with a class's patch on them: :math:`(1 - m) x + m p`."""
        mask = self.masks[label]
        return (1 - mask) * inputs + mask * self.patterns[label]

    def stamp_all(self, inputs: Tensor) -> Tensor:
        """Return images ``[n, c, h, w]`` with each class's patch on them: ``[C, n, c, h, w]``."""
        return (1 - self.masks)[:, None] * inputs + (self.masks * self.patterns)[:, None]


def held_out_images(validation: Validation, who: str) -> tuple[Tensor, Tensor]:
    """Return a validation set's images ``[n, c, h, w]``, as the model takes them, and classes.

    Raises
    ------
    ConfigError
        If the set is not one of images with classes. The message says that ``who`` needs one.
    """
    inputs = []
    targets = []
    for batch in validation.batches:
        # A DataLoader yields lists.
        content = tuple(batch.content) if isinstance(batch.content, list) else batch.content
        pair = tensor_pair(content)
        if "accuracy" not in validation.metrics or pair is None or pair[0].dim() != 4:
            raise ConfigError(
                f"{who} needs a validation set of images [n, channels, height, width] with classes"
            )
        inputs.append(pair[0])
        targets.append(pair[1])
    return torch.cat(inputs), torch.cat(targets)


def invert_triggers(
    model: Callable[[Tensor], Tensor],
    inputs: Tensor,
    num_classes: int,
    *,
    steps: int = 100,
    generator: torch.Generator | None = None,
) -> Triggers:
    r"""For every class y, find the smallest patch with which images are taken for the class.

    .. math:: \min_{m, p} \operatorname{mean}_x \operatorname{CE}\big(f((1 - m) x + m p), y\big)
              + \lambda \lVert m \rVert_1

    with m the patch's mask and p its pattern. Adam minimises this over the logits of m and p, with
    32 images a step. :math:`\lambda` is raised after a step in which the patch works (95 % of the
    images are taken for y), and lowered after any other. The result is the smallest mask that
    worked, or the last one if none did. p stays in the range that its channel has in ``inputs``. A
    class with a much smaller mask than others has a backdoor, or images are easily taken for it.

    Parameters
    ----------
    model : callable
        f, from images ``[n, c, h, w]`` to logits ``[n, C]``. Its parameters get no gradients.
    inputs : Tensor
        ``[n, c, h, w]``: the images x, n >= 1.
    num_classes : int
        C >= 2.
    steps : int
        The number of steps, >= 1; each passes 32 C images forward and back.
    generator : torch.Generator, optional
        Draws the images of a step; on the CPU.

    Returns
    -------
    Triggers
        The patch of each class.

    References
    ----------
    Wang et al., "Neural Cleanse: Identifying and Mitigating Backdoor Attacks in Neural Networks",
    IEEE S&P 2019, section IV.
    """
    by_channel = inputs.transpose(0, 1).flatten(1)
    lowest = by_channel.amin(dim=1)[:, None, None]  # [c, 1, 1]
    highest = by_channel.amax(dim=1)[:, None, None]
    channels, height, width = inputs.shape[1:]
    logits = inputs.new_zeros(num_classes, 1 + channels, height, width)
    logits.requires_grad_()
    adam = torch.optim.Adam([logits], _STEP, betas=(0.5, 0.9))
    best_logits = logits.detach().clone()
    best_sizes = logits.new_full((num_classes,), torch.inf)
    penalty = logits.new_full((num_classes,), _PENALTY)
    labels = torch.arange(num_classes, device=inputs.device).repeat_interleave(_BATCH)  # [C b]

    def patches(logits: Tensor) -> Triggers:
        shares = logits.sigmoid()
        return Triggers(masks=shares[:, :1], patterns=lowest + (highest - lowest) * shares[:, 1:])

    for _ in range(steps):
        rows = torch.randint(len(inputs), (_BATCH,), generator=generator).to(inputs.device)
        with torch.enable_grad():
            triggers = patches(logits)
            answers = model(triggers.stamp_all(inputs[rows]).flatten(0, 1))  # [C b, C]
            losses = functional.cross_entropy(answers, labels, reduction="none")
            sizes = triggers.sizes  # [C]
            total = losses.sum() / _BATCH + penalty @ sizes
            (logits.grad,) = torch.autograd.grad(total, logits)
        sizes = sizes.detach()
        gets_class = are_right(answers.detach(), labels).view(num_classes, _BATCH)
        works = gets_class.to(logits).mean(dim=1) >= _ENOUGH  # [C]
        is_smaller = works & (sizes < best_sizes)
        best_sizes = torch.where(is_smaller, sizes, best_sizes)
        # As long as no mask of a class has worked, keep its last one.
        is_best = is_smaller | best_sizes.isinf()
        best_logits[is_best] = logits.detach()[is_best]
        penalty = torch.where(works, penalty * _DEARER, penalty * _CHEAPER)
        penalty = penalty.clamp(_LEAST_PENALTY, _MOST_PENALTY)
        adam.step()
    return patches(best_logits)
