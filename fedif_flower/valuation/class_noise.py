"""By which chances labels of one class became others, told by models of the labels themselves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.valuation.label_noise import transition_matrix
from fedif_flower.valuation.noise_profile import MOST_OF_RANGE, TEMPERATURES

SUREST = 0.4  # Of the examples that models answer with a class.
PRIOR = 4.0  # Examples of a class that the mean over classes counts for.
LEAST_OF_CLASS = 20  # Labels of each class that there are: fewer tell nothing of a class alone.
MOST_CLASSES = 100
_STEPS = 60  # Of expectation and maximisation, which change the chances by less than 0.001 then.
_WITHIN = 0.9  # Of the weight at which a right label would be as likely as another.


def enough_of_each_class(labels: Tensor, num_classes: int) -> bool:
    """Tell whether labels ``[n]`` say something of each class that they name.

    Of more than 100 classes nothing is said: each pair's chance would be in every record.
    """
    if num_classes > MOST_CLASSES:
        return False
    counts = labels.bincount(minlength=num_classes)
    return bool((counts[counts > 0] >= LEAST_OF_CLASS).all())


def surest_transitions(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return how often the labels of the surest answers are others.

    An example whose answer is sure is taken for one of the class (an anchor point). So among the
    surest two fifths :math:`A_k` of the answers k,

    .. math:: T_{kj} = \frac{|\{i \in A_k: y_i = j\}| + \alpha S_{kj}}{|A_k| + \alpha}

    with S the symmetric chances that have the share of wrong labels among all of them, and
    :math:`\alpha = 4`. It errs upwards: models err where they are sure, too.

    Parameters
    ----------
    logits : Tensor
        ``[settings, n, C]``: of examples that a model was not trained on; settings are averaged.
    labels : Tensor
        ``[n]``, in [0, C).

    Returns
    -------
    Tensor
        ``[C, C]``, float64; rows sum to 1.

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
        most = max(int(SUREST * len(rows)), 1)
        surest = rows[confidence[rows].argsort(descending=True, stable=True)[:most]]
        counts[label] = labels[surest].bincount(minlength=num_classes).double()
    return _towards_symmetric(counts)


class ClassNoise(NamedTuple):
    """By which chances labels of each class became others.

    Attributes
    ----------
    transitions : Tensor
        ``[C, C]``, float64; rows sum to 1.
    share : float
        Of the labels, those that are wrong by these chances.
    """

    transitions: Tensor
    share: float


def likely_transitions(logits: Tensor, labels: Tensor, transitions: Tensor) -> ClassNoise:
    r"""Return the likeliest chances by which labels of each class became others.

    Of the models' settings and temperatures the one is taken that makes the labels likeliest by the
    given chances. Then expectation and maximisation alternate,

    .. math:: q_{ik} = \frac{p_{ik} T_{k y_i}}{\sum_l p_{il} T_{l y_i}}, \qquad
              T_{kj} = \frac{\sum_{i:\, y_i = j} q_{ik} + \alpha S_{kj}}{\sum_i q_{ik} + \alpha}

    Where another label of a class is likelier than the right one then, all are drawn towards the
    symmetric chances S until it is not: no loss can be corrected by such an estimate.

    Parameters
    ----------
    logits : Tensor
        ``[settings, n, C]``: by models whose training loss allowed for the given chances.
    labels : Tensor
        ``[n]``.
    transitions : Tensor
        ``[C, C]``: where to begin.
    """
    probabilities = _likeliest(logits, labels, transitions)  # [n, C]
    observed = torch.nn.functional.one_hot(labels, len(transitions)).double()  # [n, C]
    for _ in range(_STEPS):
        posterior = probabilities * transitions[:, labels].T
        posterior = posterior / posterior.sum(dim=1, keepdim=True)  # q [n, C]
        transitions = _towards_symmetric(posterior.T @ observed)
    transitions = _with_right_labels_ahead(transitions)
    mix = posterior.mean(dim=0)  # How frequent the right classes are, [C].
    return ClassNoise(transitions, 1 - float(mix @ transitions.diagonal()))


def _with_right_labels_ahead(transitions: Tensor) -> Tensor:
    r"""Return chances ``[C, C]`` of which the diagonal has the largest of each row.

    With the weight :math:`\lambda` they are :math:`\lambda T + (1 - \lambda) S`, S symmetric.
    """
    num_classes = len(transitions)
    right = transitions.diagonal()
    symmetric = _symmetric(1 - float(right.mean()), num_classes)
    ahead = float(symmetric[0, 0] - symmetric[0, 1])
    others = transitions - torch.diag(right)
    behind = float((others.max(dim=1).values - right).max())
    if behind < 0:
        return transitions
    weight = _WITHIN * ahead / (ahead + behind)
    return weight * transitions + (1 - weight) * symmetric


def _likeliest(logits: Tensor, labels: Tensor, transitions: Tensor) -> Tensor:
    """Return the probabilities ``[n, C]`` by which labels are likeliest, given the chances."""
    best = -torch.inf
    likeliest = torch.empty(0)
    for setting in logits.double():
        for temperature in TEMPERATURES:
            probabilities = (setting / temperature).softmax(dim=1)
            of_labels = (probabilities * transitions[:, labels].T).sum(dim=1)
            likelihood = float(of_labels.log().sum())
            if likelihood > best:
                best = likelihood
                likeliest = probabilities
    return likeliest


def _towards_symmetric(counts: Tensor) -> Tensor:
    """Return chances by counts ``[C, C]`` of classes and labels, drawn towards their mean."""
    num_classes = len(counts)
    wrong = 1 - float(counts.diagonal().sum() / counts.sum())
    symmetric = _symmetric(wrong, num_classes)
    of_class = counts.sum(dim=1, keepdim=True)
    return (counts + PRIOR * symmetric) / (of_class + PRIOR)


def _symmetric(wrong: float, num_classes: int) -> Tensor:
    """Return symmetric chances ``[C, C]``, with as many right labels as say something."""
    # Labels that are wrong more often than that would say nothing.
    most = MOST_OF_RANGE * (num_classes - 1) / num_classes
    return transition_matrix(min(max(wrong, 0.0), most), num_classes)
