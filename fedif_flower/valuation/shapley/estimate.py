"""Estimated Shapley values, and how far apart sampling alone may put those of equal clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError, is_count

# In this share of the rounds whose clients are all equal, they are to be taken for equal.
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    r"""Shapley values with their sampling error.

    Attributes
    ----------
    values : Tensor
        ``[m]``, float64.
    residuals : Tensor
        ``[n, m]``, float64: :math:`e_{ki}`, what draw k of n independent draws adds to the error of
        value i. They are scaled so that :math:`\sum_k (e_{ki} - e_{kj})^2` estimates the variance
        of :math:`\hat\varphi_i - \hat\varphi_j`. No rows: nothing was drawn at random.
    """

    values: Tensor
    residuals: Tensor

    @property
    def errors(self) -> Tensor:
        """The standard error of each value, ``[m]``; 0 where there was at most one draw."""
        errors: Tensor = torch.linalg.vector_norm(self.residuals, dim=0)
        return errors

    @property
    def resolution(self) -> float:
        r"""How far apart sampling may put the highest and the lowest value of equal clients.

        .. math:: t \, \sqrt{\frac{2}{m (m - 1)} \sum_{a < b} \sum_k (e_{ka} - e_{kb})^2}

        Under the root is the variance of the difference between two values, as a mean over all
        pairs of clients, since it is the same for every pair of equal clients. t is Student's
        quantile with (n - 1)(m - 1) degrees of freedom at :math:`1 - 0.05 / (m (m - 1))`. So if all
        clients of a round are equal, the chance is 95 % that none of the m (m - 1) / 2 differences
        is larger.

        The resolution is infinite after one draw, which says nothing about its error, and 0 where
        nothing was drawn or there is one client. It is too small after a few draws, since these may
        coincide: with 3 clients and 2 antithetic pairs of orders, one round in three has the same
        pair twice.
        """
        # Imported here, so that clients and other commands do not wait for the import.
        from scipy.special import stdtrit

        draws, num_clients = self.residuals.shape
        if draws == 0 or num_clients == 1:
            return 0.0
        if draws == 1:
            return math.inf
        # The squared differences, summed over all pairs, are m times the sum of the squared
        # deviations from the mean.
        centred = self.residuals - self.residuals.mean(dim=1, keepdim=True)  # [n, m]
        variance = 2 * float(centred.square().sum()) / (num_clients - 1)
        pairs = num_clients * (num_clients - 1) / 2
        degrees = (draws - 1) * (num_clients - 1)
        quantile = stdtrit(degrees, 1 - (1 - CONFIDENCE) / (2 * pairs))
        return float(quantile) * math.sqrt(variance)


def require_draws(num_clients: int, num_samples: int) -> None:
    """Raise ValuationError unless there are clients and samples: a mean of none is NaN, or 0."""
    for name, count in (("num_clients", num_clients), ("num_samples", num_samples)):
        if not is_count(count, 1):
            raise ValuationError(f"{name} is {count!r}; allowed: an integer >= 1")


def exactly(values: Tensor) -> Estimate:
    """Return values ``[m]`` as an estimate without sampling error."""
    return Estimate(values, values.new_empty(0, len(values)))


def mean_of_draws(draws: Tensor) -> Estimate:
    """Return the mean of independent draws ``[n, m]``, with its sampling error."""
    count = len(draws)
    values = draws.mean(dim=0)
    residuals = (draws - values) / math.sqrt(count * max(count - 1, 1))
    return Estimate(values, residuals)


def mean_of_pairs(pairs: Tensor) -> Estimate:
    """Return the mean of antithetic pairs ``[n, m]``; for one or two clients a pair is exact."""
    if pairs.shape[1] <= 2:
        return exactly(pairs.mean(dim=0))
    return mean_of_draws(pairs)


def without_chance(estimator: Callable[..., Tensor]) -> Callable[..., Estimate]:
    """Let an estimator that draws nothing return an :class:`Estimate`, as the others do."""

    def estimate(*args: object, **kwargs: object) -> Estimate:
        return exactly(estimator(*args, **kwargs))

    return estimate
