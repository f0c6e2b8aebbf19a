"""Trigger unlearning: a model is trained not to answer to the triggers that inversion finds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import require
from fedif_flower.valuation.trigger_inversion import Triggers, invert_triggers


class FoundTrigger(NamedTuple):
    """The class with the smallest inverted mask, that mask's share of the median one, a verdict."""

    label: int
    share: float
    is_trigger: bool


def unlearn_triggers(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    small: float = 0.5,
    passes: int = 5,
    steps: int = 300,
    batch_size: int = 16,
    learning_rate: float = 0.001,
    momentum: float = 0.9,
    generator: torch.Generator | None = None,
) -> list[FoundTrigger]:
    r"""Take a backdoor with a trigger out of a model, in place, by held-out images.

    In each pass the smallest patch is looked for with which the model takes images for a class (see
    :func:`~fedif_flower.valuation.trigger_inversion.invert_triggers`), for every class. Where the
    smallest mask covers less than the share ``small`` of the median one, there is a trigger. Then
    the model f is trained, by SGD in evaluation mode, to

    .. math:: \min_f \operatorname{mean}_x \operatorname{CE}\big(f(x), f_0(x)\big)
              + \operatorname{CE}\big(f((1 - m) x + m p), y\big)

    with :math:`f_0` the model as it was given, whose softmax is the target where there is no
    trigger, m and p the triggers found so far, one drawn for each batch, and y the true classes.
    The passes end when no trigger is found: a model without one is left as it is.

    Parameters
    ----------
    model : torch.nn.Module
        From images to logits ``[n, C]``; its trainable parameters are changed.
    inputs : Tensor
        ``[n, c, h, w]``: x, transformed as for the model, on its device.
    targets : Tensor
        ``[n]`` int64: y.
    small : float
        In (0, 1).
    passes, steps, batch_size : int
        >= 1; steps are those of SGD in each pass.
    learning_rate : float
        Of SGD, > 0.
    momentum : float
        In [0, 1).
    generator : torch.Generator, optional
        On the CPU, for the batches and the images of the inversion.

    Returns
    -------
    list of FoundTrigger
        What each pass found; the last one is no trigger, unless the passes did not suffice.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    References
    ----------
    Wang et al., "Neural Cleanse: Identifying and Mitigating Backdoor Attacks in Neural Networks",
    IEEE S&P 2019, section VI-C, for unlearning by the inverted trigger. That the given model's own
    answers hold the rest in place is distillation: Hinton et al., "Distilling the Knowledge in a
    Neural Network", 2015.
    """
    require(0.0 < small < 1.0, "small", small, "> 0 and < 1")
    for name, count in (("passes", passes), ("steps", steps), ("batch_size", batch_size)):
        require(count >= 1, name, count, ">= 1")
    require(learning_rate > 0.0, "learning_rate", learning_rate, "> 0")
    require(0.0 <= momentum < 1.0, "momentum", momentum, ">= 0 and < 1")
    model.eval()
    given = copy.deepcopy(model).requires_grad_(False)
    answers = torch.cat([given(part).softmax(dim=1) for part in torch.split(inputs, 256)])  # [n, C]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, learning_rate, momentum)
    found: list[FoundTrigger] = []
    known: list[tuple[Triggers, int]] = []
    for _ in range(passes):
        triggers = _inverted(model, inputs, answers.shape[1], generator)
        label = int(triggers.sizes.argmin())
        share = float(triggers.sizes[label] / triggers.sizes.median())
        found.append(FoundTrigger(label, share, is_trigger=share < small))
        if not found[-1].is_trigger:
            break
        known.append((triggers, label))
        for rows in _batches(len(targets), batch_size, steps, generator):
            drawn, of = known[int(torch.randint(len(known), (), generator=generator))]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs[rows]), answers[rows])
            stamped = model(drawn.stamp(inputs[rows], of))
            torch.autograd.backward(loss + functional.cross_entropy(stamped, targets[rows]))
            optimizer.step()
    return found


def _batches(
    count: int, batch_size: int, steps: int, generator: torch.Generator | None
) -> Iterator[Tensor]:
    """Yield rows of as many batches as there are steps, epoch after epoch."""
    left = steps
    while left:
        order = torch.randperm(count, generator=generator)
        epoch = torch.split(order, batch_size)[:left]
        yield from epoch
        left -= len(epoch)


def _inverted(
    model: nn.Module, inputs: Tensor, num_classes: int, generator: torch.Generator | None
) -> Triggers:
    """Return a model's triggers; its own parameters get no gradients meanwhile."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        return invert_triggers(model, inputs, num_classes, generator=generator)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
