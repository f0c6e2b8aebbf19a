"""Faults of held-out sets: wrong labels, and a class with few examples or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour
from fedif_flower.seeding import torch_generator
from fedif_flower.valuation.label_noise import transition_matrix

# Kinds of wrong labels: any other class with the same chance, or the class that looks alike.
SYMMETRIC = "symmetric"
CONFUSED = "confused"
KINDS = (SYMMETRIC, CONFUSED)
CLASS = 6  # The class whose examples are left out, and which malicious members label as 0.
# How many examples of CLASS stay in the held-out set: all, half, one or none.
WHOLE = "whole"
HALF = "half"
SINGLE = "single"
MISSING = "missing"
# Pairs of classes that people mistake for each other.
PAIRS: Mapping[str, Sequence[tuple[int, int]]] = {
    "digits": ((0, 2), (1, 7), (3, 8), (4, 9), (5, 6)),
    # T-shirt and shirt, trouser and dress, pullover and coat, sandal and sneaker, bag and boot.
    "fashion-mnist": ((0, 6), (1, 3), (2, 4), (5, 7), (8, 9)),
    # Airplane and ship, automobile and truck, bird and frog, cat and dog, deer and horse.
    "cifar10": ((0, 8), (1, 9), (2, 6), (3, 5), (4, 7)),
}


class SixAsZero(Behaviour):
    """Trains on its examples of class 6 as examples of class 0."""

    def poison_labels(
        self,
        labels: Tensor,
        num_classes: int,  # noqa: ARG002
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Return the labels ``[n]``, with 0 in place of 6."""
        return labels.where(labels != CLASS, torch.zeros_like(labels))


def mistaken_for(data: str) -> Tensor:
    """Return ``[C]``: for each class, the class that people mistake it for."""
    pairs = PAIRS[data]
    others = torch.empty(2 * len(pairs), dtype=torch.long)
    for first, second in pairs:
        others[first] = second
        others[second] = first
    return others


def with_wrong_labels(
    labels: Tensor, share: float, num_classes: int, seed: int, others: Tensor | None = None
) -> Tensor:
    """Return labels ``[n]`` with a share of them, drawn at random, replaced by wrong ones.

    Parameters
    ----------
    labels : Tensor
        ``[n]``: the true labels.
    share : float
        The share that is replaced, in [0, 1].
    num_classes : int
        C. Without ``others``, each other class has the same chance.
    seed : int
        Seeds which labels are replaced, and by which class.
    others : Tensor, optional
        ``[C]``: for each class, the label that replaces it.
    """
    generator = torch_generator("held-out-study-labels", seed)
    rows = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    wrong = labels.clone()
    if others is not None:
        wrong[rows] = others[labels[rows]]
        return wrong
    shifts = torch.randint(1, num_classes, (len(rows),), generator=generator)
    wrong[rows] = (labels[rows] + shifts) % num_classes
    return wrong


def true_transitions(share: float, num_classes: int, others: Tensor | None = None) -> Tensor:
    """Return ``[C, C]``: the chance that :func:`with_wrong_labels` replaces one class by another.

    Rows are the true classes; the diagonal has the chance that a label stays.
    """
    if others is None:
        return transition_matrix(share, num_classes)
    chances = (1 - share) * torch.eye(num_classes, dtype=torch.float64)
    chances[torch.arange(num_classes), others] = share
    return chances


def kept_of_class(labels: Tensor, amount: str) -> Tensor:
    """Return which examples stay, ``[n]``, bool: those of other classes, and some of class 6.

    ``amount`` says how many of class 6: ``"whole"``, ``"half"``, ``"single"`` or ``"missing"``.
    """
    stays = torch.ones(len(labels), dtype=torch.bool)
    rows = (labels == CLASS).nonzero().flatten()
    left = {WHOLE: len(rows), HALF: len(rows) // 2, SINGLE: 1, MISSING: 0}[amount]
    stays[rows[left:]] = False
    return stays
