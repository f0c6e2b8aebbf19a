"""Held-out sets with faults: labels that are wrong, classes of which there are few or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour
from fedif_flower.seeding import torch_generator
from fedif_flower.valuation.label_noise import transition_matrix

# How labels are wrong: each other class is as likely, or people take it for this one.
SYMMETRIC = "symmetric"
CONFUSED = "confused"
KINDS = (SYMMETRIC, CONFUSED)
CLASS = 6  # Of which examples are left out; malicious members call it 0.
# How many of its examples stay.
WHOLE = "whole"
HALF = "half"
SINGLE = "single"
MISSING = "missing"
# Each class, and the one that people take it for.
PAIRS: Mapping[str, Sequence[tuple[int, int]]] = {
    "digits": ((0, 2), (1, 7), (3, 8), (4, 9), (5, 6)),
    # T-shirt and shirt, trouser and dress, pullover and coat, sandal and sneaker, bag and boot.
    "fashion-mnist": ((0, 6), (1, 3), (2, 4), (5, 7), (8, 9)),
    # Airplane and ship, automobile and truck, bird and frog, cat and dog, deer and horse.
    "cifar10": ((0, 8), (1, 9), (2, 6), (3, 5), (4, 7)),
}


class SixAsZero(Behaviour):
    """Trains on all its examples of class 6 as if they were of class 0."""

    def poison_labels(
        self,
        labels: Tensor,
        num_classes: int,  # noqa: ARG002
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Return the labels ``[n]`` without a 6."""
        return labels.where(labels != CLASS, torch.zeros_like(labels))


def mistaken_for(data: str) -> Tensor:
    """Return for each class the one that people take it for, ``[C]``."""
    pairs = PAIRS[data]
    others = torch.empty(2 * len(pairs), dtype=torch.long)
    for first, second in pairs:
        others[first] = second
        others[second] = first
    return others


def with_wrong_labels(
    labels: Tensor, share: float, num_classes: int, seed: int, others: Tensor | None = None
) -> Tensor:
    """Return labels ``[n]`` of which a share, drawn at random, are wrong.

    Parameters
    ----------
    labels : Tensor
        ``[n]``.
    share : float
        Of them, in [0, 1].
    num_classes : int
        C: each other class is as likely.
    seed : int
        Draws which labels, and what they become.
    others : Tensor, optional
        ``[C]``: what a wrong label of each class is instead.
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
    """Return the chances ``[C, C]`` by which :func:`with_wrong_labels` replaces labels."""
    if others is None:
        return transition_matrix(share, num_classes)
    chances = (1 - share) * torch.eye(num_classes, dtype=torch.float64)
    chances[torch.arange(num_classes), others] = share
    return chances


def kept_of_class(labels: Tensor, classes: str) -> Tensor:
    """Return which of the examples ``[n]`` stay: all of class 6, half, one, or none."""
    stays = torch.ones(len(labels), dtype=torch.bool)
    rows = (labels == CLASS).nonzero().flatten()
    left = {WHOLE: len(rows), HALF: len(rows) // 2, SINGLE: 1, MISSING: 0}[classes]
    stays[rows[left:]] = False
    return stays
