"""Estimated Shapley values, and how far apart chance alone may put equal ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# The share of the rounds with equal clients in which they are to be taken for equal.
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    r"""Shapley values, and what is left to chance in them.

    Attributes
    ----------
    values : Tensor
        ``[m]``, float64.
    residuals : Tensor
        ``[n, m]``, float64: by how much each of n independent draws moved the values. The variance
        of :math:`\hat\varphi_i - \hat\varphi_j` is :math:`\sum_k (e_{ki} - e_{kj})^2`. No rows:
        nothing was drawn.
    """

    values: Tensor
    residuals: Tensor

    @property
    def errors(self) -> Tensor:
        """The standard error of each value, ``[m]``; 0 where at most one was drawn."""
        errors: Tensor = torch.linalg.vector_norm(self.residuals, dim=0)
        return errors

    @property
    def resolution(self) -> float:
        r"""How far apart chance may put the highest and the lowest value of equal clients.

        .. math:: t \, \sqrt{\frac{2}{m (m - 1)} \sum_{a < b} \sum_k (e_{ka} - e_{kb})^2}

        Under the root is the variance of a difference, the mean over all pairs of clients: that of
        equal clients is the same for each pair. t is Student's quantile with (n - 1)(m - 1) degrees
        of freedom: beyond it none of the m (m - 1) / 2 differences lies in 95 % of the rounds in
        which there are none. Infinite after one draw, which says nothing of its error; 0 where
        nothing was drawn. It is too small after a few draws, which may coincide: with 3 clients and
        2 antithetic pairs of orders, one round in three has the same pair twice.
        """
        # Imported here: every client and command line would wait for it.
        from scipy.special import stdtrit

        draws, num_clients = self.residuals.shape
        if draws == 0 or num_clients == 1:
            return 0.0
        if draws == 1:
            return math.inf
        # The sum over all pairs of squared differences is m times that of squared deviations.
        centred = self.residuals - self.residuals.mean(dim=1, keepdim=True)  # [n, m]
        variance = 2 * float(centred.square().sum()) / (num_clients - 1)
        pairs = num_clients * (num_clients - 1) / 2
        degrees = (draws - 1) * (num_clients - 1)
        quantile = stdtrit(degrees, 1 - (1 - CONFIDENCE) / (2 * pairs))
        return float(quantile) * math.sqrt(variance)


def exactly(values: Tensor) -> Estimate:
    """Return values ``[m]`` in which nothing is left to chance."""
    return Estimate(values, values.new_empty(0, len(values)))


def mean_of_draws(draws: Tensor) -> Estimate:
    """Return the mean of independent draws ``[n, m]``, and what is left to chance in it."""
    count = len(draws)
    values = draws.mean(dim=0)
    residuals = (draws - values) / math.sqrt(count * max(count - 1, 1))
    return Estimate(values, residuals)


def mean_of_pairs(pairs: Tensor) -> Estimate:
    """Return the mean of antithetic pairs ``[n, m]``; for two clients every pair is exact."""
    if pairs.shape[1] <= 2:
        return exactly(pairs.mean(dim=0))
    return mean_of_draws(pairs)


def without_chance(estimator: Callable[..., Tensor]) -> Callable[..., Estimate]:
    """Return an estimator that draws nothing, with the answer of one that does."""

    def estimate(*args: object, **kwargs: object) -> Estimate:
        return exactly(estimator(*args, **kwargs))

    return estimate
