"""A weighted sum of updates whose weights are known only when the last one is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedif_flower.errors import ValuationError

# Of weights that solve the system, in float64; anything beyond is no rounding.
_TOLERANCE = 1e-6


class StreamedSums:
    r"""Sums updates as they come, in the memory of K vectors however many updates there are.

    .. math:: S_k = \sum_i c_{ik} u_i, \qquad
              p_i = \sum_k a_k c_{ik} \;\Rightarrow\; \sum_i p_i u_i = \sum_k a_k S_k

    with :math:`u_i` the updates, :math:`c_{ik}` numbers that are known when :math:`u_i` comes, and
    :math:`p_i` weights that are known at the end. FedIF's are of this form with
    c = (1, Phi, Omega): min-max and the smooth update are linear in both.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # [K, d]
        self._rows: list[Sequence[float]] = []

    def __len__(self) -> int:
        """Return the number of updates so far."""
        return len(self._rows)

    def add(self, update: Tensor, coefficients: Sequence[float]) -> None:
        """Take in an update.

        Parameters
        ----------
        update : Tensor
            ``[d]``; it may be overwritten afterwards.
        coefficients : sequence of float
            K numbers, finite; K is the same for every update.
        """
        if self._sums is None:
            self._sums = torch.zeros(len(coefficients), len(update), dtype=update.dtype)
        for total, coefficient in zip(self._sums, coefficients, strict=True):
            if coefficient:
                total.add_(update, alpha=coefficient)
        self._rows.append(coefficients)

    def combined(self, weights: Tensor) -> Tensor:
        """Return the sum of all updates times their weights.

        Parameters
        ----------
        weights : Tensor
            ``[m]``, finite, in the order in which the updates came.

        Returns
        -------
        Tensor
            ``[d]``, a new tensor.

        Raises
        ------
        ValuationError
            If the weights are no combination of the coefficients.
        """
        if self._sums is None:
            raise ValuationError("there are no updates to combine")
        known = np.array(self._rows, dtype=np.float64)  # [m, K]
        scale = np.abs(known).max(axis=0)  # [K]
        scale[scale == 0] = 1.0
        wanted = weights.detach().cpu().double().numpy()  # [m]
        solution, *_ = np.linalg.lstsq(known / scale, wanted, rcond=None)
        error = np.abs(known / scale @ solution - wanted).max(initial=0.0)
        if not error <= _TOLERANCE * np.abs(wanted).max(initial=0.0):
            raise ValuationError(
                "these weights are not linear in what is known when a reply arrives: "
                'aggregation="stacked" is needed'
            )
        factors = torch.from_numpy(solution / scale).to(self._sums)  # [K]
        return factors @ self._sums
