"""Cross-entropy that is corrected for wrong labels among the held-out examples."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fedif_flower.errors import ConfigError, require
from fedif_flower.tasks.dtypes import widened

_ROUNDING = 1e-5  # How far a row of float32 chances may sum from 1.


def transition_matrix(noise: float, num_classes: int) -> Tensor:
    r"""Return the chances of labels under symmetric noise: all wrong classes are equally likely.

    .. math:: T = (1 - \varepsilon) I + \frac{\varepsilon}{C - 1} (\mathbf{1}\mathbf{1}^\top - I)

    Parameters
    ----------
    noise : float
        :math:`\varepsilon`, the share of wrong labels, >= 0 and < (C - 1) / C.
    num_classes : int
        C, >= 2.

    Returns
    -------
    Tensor
        ``[C, C]``, float64: T_kj is the chance that an example of class k is labelled j; rows sum
        to 1.

    Raises
    ------
    ConfigError
        If the noise lies outside its range.
    """
    require_noise(noise, num_classes)
    right = torch.eye(num_classes, dtype=torch.float64)
    return (1 - noise) * right + noise / (num_classes - 1) * (1 - right)


def require_noise(noise: float, num_classes: int) -> None:
    """Raise ConfigError unless a share of wrong labels is >= 0 and < (C - 1) / C.

    At (C - 1) / C every label is equally likely, whatever the class: labels say nothing there.
    """
    most = (num_classes - 1) / num_classes
    allowed = f">= 0 and < {most:.3g}, at which labels of {num_classes} classes say nothing"
    require(0 <= noise < most, "noise", noise, allowed)


def require_transitions(transitions: Tensor) -> None:
    """Raise ConfigError unless ``[C, C]`` has rows of chances, each largest on the diagonal."""
    count = len(transitions) if transitions.dim() else 0
    shape = list(transitions.shape)
    require(count >= 2 and shape == [count, count], "noise", shape, "[C, C], a row for each class")
    sums = transitions.double().sum(dim=1)
    are_chances = bool((transitions >= 0).all()) and bool(((sums - 1).abs() <= _ROUNDING).all())
    if not are_chances:
        raise ConfigError(
            f"noise has rows that sum to {sums.tolist()}; allowed: chances, sums of 1"
        )
    right = transitions.diagonal()
    others = transitions - torch.diag(right)
    weak = (right <= others.max(dim=1).values).nonzero().flatten().tolist()
    if weak:
        raise ConfigError(
            f"noise has another label for the classes {weak} that is as likely as the right one; "
            "allowed: a diagonal with the largest chance of each row"
        )


def is_noise(noise: float | Tensor) -> bool:
    """Tell whether there is noise to correct for: a share that is not 0, or chances ``[C, C]``."""
    return isinstance(noise, Tensor) or noise != 0


class ForwardCorrected:
    r"""A cross-entropy of given labels, some of them wrong, for a model of the right labels.

    .. math:: \ell(x, y) = -\log (p T)_y, \qquad p = \mathrm{softmax}(f(x)), \qquad
              (p T)_j = \sum_k p_k T_{kj}

    with f the model's logits and :math:`T_{kj}` the chance that an example of class k is labelled
    j. For symmetric noise of the share :math:`\varepsilon` (:func:`transition_matrix`),
    :math:`(p T)_y = q = b + (a - b) p_y` with :math:`a = 1 - \varepsilon` and
    :math:`b = \varepsilon / (C - 1)`, and the gradient in the logits is

    .. math:: \frac{\partial \ell}{\partial f_k} = -\frac{(a - b)\, p_y}{q}
              \left(\mathbb{1}[k = y] - p_k\right)

    so that an example counts less, the surer the model is of another label. Over many examples, the
    loss has its minimum where cross-entropy on the right labels has it. Class weights, ignored
    targets and label smoothing of the given loss keep their effect, since it is called with
    :math:`\log (p T)` in place of the logits. Without noise it gets the logits themselves.

    Parameters
    ----------
    loss_fn : callable
        ``(outputs, targets)`` -> scalar: torch's cross-entropy of logits ``[n, C, ...]``, or its
        negative log-likelihood of log-probabilities, and targets ``[n, ...]``.
    noise : float or Tensor
        :math:`\varepsilon`, >= 0 and < (C - 1) / C; or T, ``[C, C]``, with rows that sum to 1 and
        whose largest chance is on the diagonal.

    Raises
    ------
    ConfigError
        If the noise lies outside its range. T and the sign of :math:`\varepsilon` are checked when
        this is made; the upper limit of :math:`\varepsilon`, and the size of T, when it is called,
        since the outputs tell C.

    References
    ----------
    Patrini et al., "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach",
    2017, arXiv 1609.03683 (the forward correction).
    """

    def __init__(self, loss_fn: Callable[..., Any], noise: float | Tensor) -> None:
        if isinstance(noise, Tensor):
            require_transitions(noise)
        else:
            is_share = isinstance(noise, Real) and noise >= 0
            require(is_share, "noise", noise, "a number >= 0, or a tensor of chances [C, C]")
        self.loss_fn = loss_fn
        self.noise = noise

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        """Return the loss of logits ``[n, C, ...]`` and targets ``[n, ...]``."""
        if not is_noise(self.noise):
            return self.loss_fn(outputs, targets)
        return self.loss_fn(corrected(outputs, self.noise), targets)


def corrected(logits: Tensor, noise: float | Tensor) -> Tensor:
    r"""Return :math:`\log (p T)`, the log probabilities of the given labels.

    The sums are computed so that a probability that underflows does not make the loss infinite.

    Parameters
    ----------
    logits : Tensor
        ``[n, C, ...]``; those in half precision are converted to float32.
    noise : float or Tensor
        As :class:`ForwardCorrected` takes it.

    Returns
    -------
    Tensor
        ``[n, C, ...]``.
    """
    num_classes = logits.shape[1]
    log_p = widened(logits).log_softmax(dim=1)
    if isinstance(noise, Tensor):
        shape = list(noise.shape)
        allowed = f"chances of the model's classes, {[num_classes, num_classes]}"
        require(len(noise) == num_classes, "noise", shape, allowed)
        by_class = log_p.movedim(1, -1)  # [n, ..., C]
        return _log_of_labels(by_class, noise.to(log_p)).movedim(-1, 1)
    require_noise(noise, num_classes)
    return log_chance_of_label(log_p, log_p.new_tensor(noise), num_classes)


def _log_of_labels(log_p: Tensor, chances: Tensor) -> Tensor:
    """Return log(p T) for log p ``[..., C]`` and T ``[C, C]``.

    If no chance is nearly 0, then no label's chance is nearly 0 by the likeliest class alone. So
    the probabilities themselves are added up, in multiples of the largest. Otherwise a logsumexp is
    taken for each label, which needs C times as much memory: 400 MB for 100 examples of a thousand
    classes.
    """
    least = torch.finfo(log_p.dtype).tiny ** 0.5
    if bool((chances > least).all()):
        largest = log_p.detach().amax(dim=-1, keepdim=True)
        return ((log_p - largest).exp() @ chances).log() + largest
    by_class = log_p[..., None] + chances.log()  # [..., C, C]
    return by_class.logsumexp(dim=-2)


def log_chance_of_label(log_p: Tensor, noise: Tensor, num_classes: int) -> Tensor:
    r"""Return :math:`\log(b + (a - b) p)`: the log chance of a label whose class has probability p.

    Parameters
    ----------
    log_p : Tensor
        :math:`\log p`, of any shape.
    noise : Tensor
        :math:`\varepsilon`, of a shape that broadcasts with it; 0 gives :math:`\log p` itself.
    num_classes : int
        C, >= 2: :math:`a = 1 - \varepsilon`, :math:`b = \varepsilon / (C - 1)`.
    """
    other = noise / (num_classes - 1)
    return torch.logaddexp(other.log(), (1 - noise - other).log() + log_p)
