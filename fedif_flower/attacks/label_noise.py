"""Label noise: a share of a client's labels is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedif_flower.attacks.assignment import choose
from fedif_flower.attacks.behaviour import Behaviour, Ratio
from fedif_flower.errors import is_count, require
from fedif_flower.tasks.rows import holds_classes
from fedif_flower.tasks.task import Task


def flip_labels(
    labels: Tensor, num_classes: int, ratio: float, generator: torch.Generator
) -> Tensor:
    r"""Replace a share of the labels by a uniformly drawn *different* class.

    .. math:: y_i' = (y_i + u_i) \bmod C, \quad u_i \sim U\{1, \dots, C - 1\}

    for ``round(ratio * n)`` of the n labels in [0, C), chosen at random, with C the number of
    classes. Labels outside of this range, such as -100, stand for no answer and are kept.

    Parameters
    ----------
    labels : Tensor
        ``[examples, ...]`` int64.
    num_classes : int
        C >= 2.
    ratio : float
        Share of the labels to replace, in [0, 1].
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Tensor
        ``[examples, ...]`` int64; ``labels`` itself is not changed.

    Raises
    ------
    ConfigError
        If ``num_classes`` or ``ratio`` lies outside its range.
    """
    require(is_count(num_classes, 2), "num_classes", num_classes, "an integer >= 2")
    flipped = labels.flatten().clone()
    is_class = (flipped >= 0) & (flipped < num_classes)
    places = is_class.nonzero().flatten()  # [n]
    chosen = places[choose(len(places), ratio, generator).to(labels.device)]  # [k]
    shift = torch.randint(1, num_classes, chosen.shape, generator=generator)  # [k]
    flipped[chosen] = (flipped[chosen] + shift.to(labels.device)) % num_classes
    return flipped.view_as(labels)


@dataclass
class LabelNoise(Behaviour):
    """Trains on partly wrong labels, the same ones at every round.

    Parameters
    ----------
    ratio : float
        Share of the labels that is replaced, in [0, 1] (the paper's ``n_ratio``).
    """

    ratio: Ratio

    def misfit(self, task: Task) -> str:
        """Return that it needs classes, if the task has none."""
        if task.num_classes:
            return ""
        return "class labels (num_classes)"

    def label_misfit(self, labels: Tensor) -> str:
        """Return that it needs integer labels, if they are others, such as probabilities."""
        if holds_classes(labels):
            return ""
        return "integer labels"

    def poison_labels(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the labels with a share of them flipped (see :func:`flip_labels`)."""
        return flip_labels(labels, num_classes, self.ratio, generator)
