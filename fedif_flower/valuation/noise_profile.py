"""Estimate the share of wrong labels by what models predict for examples they have not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.valuation.label_noise import log_chance_of_label

GRID = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)
TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0)
DRAWS = 200  # Of the bootstrap.
TAIL = 0.05  # The share of the draws that lies beyond either end of the interval.
# The loss is corrected although up to this share of the draws has no wrong labels.
_LOWER_QUARTILE = 0.25
MOST_OF_RANGE = 0.95  # The largest share in units of (C - 1) / C, at which labels say nothing.


class Profile(NamedTuple):
    """What a set of labels says about the share of wrong ones.

    Attributes
    ----------
    noise, low, high : float
        The share that is most likely, and the ends of its 90 % interval.
    lower_quartile : float
        The share that three quarters of the bootstrap's draws reach.
    probabilities : Tensor
        ``[n, C]``: the models' probabilities, in the likeliest setting and temperature.
    """

    noise: float
    low: float
    high: float
    lower_quartile: float
    probabilities: Tensor


def profile(logits: Tensor, labels: Tensor, generator: torch.Generator) -> Profile:
    r"""Return the share of wrong labels that maximises the cross-validated likelihood.

    .. math:: \hat\varepsilon = \arg\max_\varepsilon \max_{s, \tau} \sum_i \log\left(
              (1 - \varepsilon) p_{i y_i} + \frac{\varepsilon}{C - 1} (1 - p_{i y_i})\right),
              \qquad p_i = \mathrm{softmax}(z_{is} / \tau)

    with :math:`y_i` the label of example i, C the number of classes, and :math:`z_{is}` the logits
    of example i by a model that was not trained on it, in setting s. The likelihood is maximised
    over settings and temperatures :math:`\tau`, too, because a model's overconfidence would pass
    for wrong labels otherwise. The interval is the middle 90 % of 200 bootstrap draws of examples,
    widened to the estimate where that lies outside. Shares are those of :data:`GRID`, at most 0.6
    and below 0.95 (C - 1) / C: if more labels are wrong, the estimate is the largest of them.

    Parameters
    ----------
    logits : Tensor
        ``[settings, n, C]``.
    labels : Tensor
        ``[n]``, in [0, C).
    generator : torch.Generator
        Draws the bootstrap's examples, on the CPU.
    """
    count, num_classes = logits.shape[1:]
    logits = logits.cpu().double()  # First to the CPU: not every device has float64.
    labels = labels.cpu()
    log_p = _log_p_of_label(logits, labels)
    draws = torch.randint(count, (DRAWS, count), generator=generator)
    # [B, n]: how often each draw has each example.
    weights = torch.stack([draw.bincount(minlength=count) for draw in draws]).double()

    most = MOST_OF_RANGE * (num_classes - 1) / num_classes
    noises = [noise for noise in GRID if noise < most]
    heights = []
    places = []
    drawn_heights = []
    for grid_noise in noises:
        noise = torch.tensor(grid_noise, dtype=torch.float64)
        likelihood = log_chance_of_label(log_p, noise, num_classes)  # [settings, n]
        height, place = likelihood.sum(dim=1).max(dim=0)
        heights.append(float(height))
        places.append(int(place))
        drawn_heights.append((likelihood @ weights.T).max(dim=0).values)  # [B]
    best = max(range(len(noises)), key=heights.__getitem__)
    drawn = torch.stack(drawn_heights).argmax(dim=0)  # [B]
    drawn_noises = torch.tensor(noises, dtype=torch.float64)[drawn]
    tails = torch.tensor([TAIL, _LOWER_QUARTILE, 1 - TAIL], dtype=torch.float64)
    low, lower_quartile, high = drawn_noises.quantile(tails).tolist()
    setting, temperature = divmod(places[best], len(TEMPERATURES))
    probabilities = (logits[setting] / TEMPERATURES[temperature]).softmax(dim=-1)
    estimate = noises[best]
    return Profile(
        noise=estimate,
        low=min(low, estimate),
        high=max(high, estimate),
        lower_quartile=lower_quartile,
        probabilities=probabilities,
    )


def _log_p_of_label(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logarithm of each label's probability, ``[settings * temperatures, n]``.

    The probabilities of all classes are computed for one temperature at a time: with a thousand
    classes, those for all temperatures would take gigabytes.
    """
    places = labels.expand(logits.shape[:2])[..., None]  # [settings, n, 1]
    by_temperature = []
    for temperature in TEMPERATURES:
        log_p = (logits / temperature).log_softmax(dim=-1)  # [settings, n, C]
        by_temperature.append(log_p.gather(-1, places)[..., 0])
    return torch.stack(by_temperature, dim=1).flatten(0, 1)


@dataclass(frozen=True)
class Suspect:
    """An example whose label looks wrong.

    Attributes
    ----------
    index : int
        Its index in the held-out set, from 0.
    given, likely : int
        Its label, and the class that models predict.
    probability : float
        The models' probability of the predicted class, in [0, 1].
    """

    index: int
    given: int
    likely: int
    probability: float


def find_suspects(probabilities: Tensor, labels: Tensor, most: int) -> list[Suspect]:
    r"""Return the examples that models confidently predict as another class than their label.

    .. math:: \hat y_i = \arg\max_{k:\; p_{ik} \ge t_k} p_{ik}, \qquad
              t_k = \frac{1}{|\{i: y_i = k\}|} \sum_{i:\; y_i = k} p_{ik}

    with :math:`t_k` the mean probability of class k among the examples that are labelled k. The
    suspects are the examples with :math:`\hat y_i \ne y_i`; an example that has no class k with
    :math:`p_{ik} \ge t_k` is none. They are ordered by :math:`p_{i \hat y_i} - p_{i y_i}`, the
    largest first.

    Parameters
    ----------
    probabilities : Tensor
        ``[n, C]``: p, by models that were not trained on the examples.
    labels : Tensor
        ``[n]``: y.
    most : int
        At most so many are returned, since a model's own errors look just like wrong labels.

    References
    ----------
    Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels",
    2021, arXiv 1911.00068.
    """
    num_classes = probabilities.shape[1]
    thresholds = torch.full((num_classes,), torch.inf, dtype=probabilities.dtype)
    for label in sorted(set(labels.tolist())):
        thresholds[label] = probabilities[labels == label, label].mean()
    confident = torch.where(probabilities >= thresholds, probabilities, -1.0)
    value, likely = confident.max(dim=1)
    margins = value - probabilities.gather(1, labels[:, None])[:, 0]
    is_suspect = (value >= 0) & (likely != labels)
    rows = is_suspect.nonzero().flatten()
    order = margins[rows].argsort(descending=True, stable=True)[:most]
    return [Suspect(int(i), int(labels[i]), int(likely[i]), float(value[i])) for i in rows[order]]
