"""Estimate the chances with which labels of one class became labels of another."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.valuation.label_noise import transition_matrix
from fedif_flower.valuation.noise_profile import MOST_OF_RANGE, TEMPERATURES

# Among the examples predicted as one class, the share that models are surest of.
_SUREST_SHARE = 0.4
PRIOR = 4.0  # alpha: symmetric chances weigh as much as so many further examples of each class.
LEAST_OF_CLASS = 20  # Fewer labels of a class say nothing about this class alone.
MOST_CLASSES = 100
_EM_STEPS = 60  # Of expectation maximisation. The last ones change the chances by less than 0.001.
_LAMBDA = 0.9  # lambda, in units of the weight at which another label is as likely as the right.


def enough_of_each_class(labels: Tensor, num_classes: int) -> bool:
    """Tell whether each class among labels ``[n]`` has enough of them to estimate its chances.

    With more than 100 classes the answer is no: every record would hold the chances of all pairs.
    """
    if num_classes > MOST_CLASSES:
        return False
    counts = labels.bincount(minlength=num_classes)
    return bool((counts[counts > 0] >= LEAST_OF_CLASS).all())


def surest_transitions(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Estimate the chances of labels from the examples that models are surest of.

    An example that models surely predict as one class is taken for one of this class (an anchor
    point). Let :math:`A_k` be the surest two fifths of the examples that are predicted as class k:

    .. math:: T_{kj} = \frac{|\{i \in A_k: y_i = j\}| + \alpha S_{kj}}{|A_k| + \alpha}

    with :math:`y_i` the label of example i, :math:`\alpha = 4`, and S the symmetric chances that
    have as large a share of wrong labels as all :math:`A_k` together. The chances of wrong labels
    are overestimated, since models also err where they are sure.

    Parameters
    ----------
    logits : Tensor
        ``[settings, n, C]``, by models that were not trained on the example; the probabilities of
        all settings are averaged.
    labels : Tensor
        ``[n]``, in [0, C).

    Returns
    -------
    Tensor
        T, ``[C, C]``, float64: the chance that an example of class k is labelled j; rows sum to 1.

    References
    ----------
    Patrini et al., 2017, arXiv 1609.03683, estimate chances from anchor points.
    """
    probabilities = logits.double().softmax(dim=-1).mean(dim=0)  # [n, C]
    confidence, answers = probabilities.max(dim=1)
    num_classes = probabilities.shape[1]
    counts = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    for label in range(num_classes):
        rows = (answers == label).nonzero().flatten()
        most = max(int(_SUREST_SHARE * len(rows)), 1)
        surest = rows[confidence[rows].argsort(descending=True, stable=True)[:most]]
        counts[label] = labels[surest].bincount(minlength=num_classes).double()
    return _towards_symmetric(counts)


class ClassNoise(NamedTuple):
    """The chances with which labels of one class became labels of another.

    Attributes
    ----------
    transitions : Tensor
        T, ``[C, C]``, float64: the chance that an example of class k is labelled j; rows sum to 1.
    share : float
        The share of all labels that is wrong, by these chances.
    """

    transitions: Tensor
    share: float


def likely_transitions(logits: Tensor, labels: Tensor, transitions: Tensor) -> ClassNoise:
    r"""Return the likeliest chances with which labels of one class became labels of another.

    First a setting of the models and a temperature are chosen: those whose probabilities p make the
    labels likeliest, given the chances to begin with. Then expectation and maximisation alternate,

    .. math:: q_{ik} = \frac{p_{ik} T_{k y_i}}{\sum_l p_{il} T_{l y_i}}, \qquad
              T_{kj} = \frac{\sum_{i:\, y_i = j} q_{ik} + \alpha S_{kj}}{\sum_i q_{ik} + \alpha}

    with :math:`p_{ik}` the probability that example i is of class k, :math:`q_{ik}` the same given
    its label :math:`y_i`, :math:`\alpha = 4`, and S the symmetric chances with as large a share of
    wrong labels. If some class then has another label that is at least as likely as the right one,
    all chances are drawn towards symmetric ones until the right label is likeliest: a loss cannot
    be corrected by other chances.

    Parameters
    ----------
    logits : Tensor
        ``[settings, n, C]``: by models whose training loss allowed for ``transitions``, for
        examples that they were not trained on.
    labels : Tensor
        ``[n]``: y, in [0, C).
    transitions : Tensor
        ``[C, C]``: the chances T to begin with.
    """
    log_probabilities = _likeliest(logits, labels, transitions)  # [n, C]
    observed = torch.nn.functional.one_hot(labels, len(transitions)).double()  # [n, C]
    for _ in range(_EM_STEPS):
        posterior = (log_probabilities + transitions[:, labels].T.log()).softmax(dim=1)  # q [n, C]
        transitions = _towards_symmetric(posterior.T @ observed)
    transitions = _with_right_labels_ahead(transitions)
    mix = posterior.mean(dim=0)  # [C]: how frequent each class is among the right labels.
    return ClassNoise(transitions, 1 - float(mix @ transitions.diagonal()))


def _with_right_labels_ahead(transitions: Tensor) -> Tensor:
    r"""Return chances ``[C, C]`` by which the right label is the likeliest of each class.

    They are T, the given ``transitions``, if that holds already. Otherwise they are
    :math:`\lambda T + (1 - \lambda) S`, with S the symmetric chances of the same mean diagonal, and
    :math:`\lambda` nine tenths of the weight at which some other label is as likely as the right.
    """
    num_classes = len(transitions)
    right = transitions.diagonal()
    symmetric = _symmetric(1 - float(right.mean()), num_classes)
    ahead = float(symmetric[0, 0] - symmetric[0, 1])
    others = transitions - torch.diag(right)
    behind = float((others.max(dim=1).values - right).max())
    if behind < 0:
        return transitions
    weight = _LAMBDA * ahead / (ahead + behind)
    return weight * transitions + (1 - weight) * symmetric


def _likeliest(logits: Tensor, labels: Tensor, transitions: Tensor) -> Tensor:
    """Return log p ``[n, C]``, by the setting and temperature that make the labels likeliest."""
    best = -torch.inf
    likeliest = torch.empty(0)
    for setting in logits.double():
        for temperature in TEMPERATURES:
            # In logarithms, since the probability of a label may be too small for a float.
            log_probabilities = (setting / temperature).log_softmax(dim=1)
            log_p_of_labels = (log_probabilities + transitions[:, labels].T.log()).logsumexp(dim=1)
            likelihood = float(log_p_of_labels.sum())
            if likelihood > best:
                best = likelihood
                likeliest = log_probabilities
    return likeliest


def _towards_symmetric(counts: Tensor) -> Tensor:
    """Return chances from counts ``[C, C]`` of classes and labels, drawn towards symmetric ones.

    The symmetric chances have as large a share of wrong labels as the counts, and weigh as much as
    PRIOR further examples of each class.
    """
    num_classes = len(counts)
    wrong = 1 - float(counts.diagonal().sum() / counts.sum())
    symmetric = _symmetric(wrong, num_classes)
    class_counts = counts.sum(dim=1, keepdim=True)
    return (counts + PRIOR * symmetric) / (class_counts + PRIOR)


def _symmetric(wrong: float, num_classes: int) -> Tensor:
    """Return the symmetric chances ``[C, C]`` for a share of wrong labels, within its range."""
    # With a share near (C - 1) / C, labels would say nothing.
    most = MOST_OF_RANGE * (num_classes - 1) / num_classes
    return transition_matrix(min(max(wrong, 0.0), most), num_classes)
