"""From a round's scores to aggregation weights: normalise, smooth, weigh.

FedIF and AFedSV share this file; they differ in the valuation whose scores come in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError

WeightScope = Literal["participants", "population"]
WEIGHT_SCOPES: tuple[str, ...] = get_args(WeightScope)

logger = logging.getLogger(__name__)

_SHOWN = 10  # Clients in a ledger's repr.


def min_max(scores: Tensor) -> Tensor:
    r"""Map a round's scores to [0, 1].

    .. math:: \Psi_i = (\Phi_i - \min \Phi) / (\max \Phi - \min \Phi)

    with :math:`\Phi` the scores of the m participants. All equal, or m = 1: ones.

    Parameters
    ----------
    scores : Tensor
        ``[m]``, finite.

    Returns
    -------
    Tensor
        ``[m]``, in [0, 1], same dtype.

    References
    ----------
    FedIF, equation for the normalised round influence.
    """
    if scores.numel() == 0:
        return scores.clone()
    low, high = scores.min(), scores.max()
    # Halves, so that the difference of two finite scores cannot overflow.
    spread = high / 2 - low / 2
    if not bool(spread > 0):
        return torch.ones_like(scores)
    return ((scores / 2 - low / 2) / spread).clamp(0.0, 1.0)


class ContributionLedger:
    r"""Each client's contribution over the rounds, and the weights that follow from it.

    .. math:: \Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma \Psi_i \quad (i \in S_t)

    with :math:`S_t` the participants of round t, :math:`\Psi_i` client i's normalised score and
    :math:`\gamma` the rate of the smooth update. Clients outside :math:`S_t` keep theirs.

    Parameters
    ----------
    gamma : float
        Rate of the smooth update, in (0, 1].
    initial : float
        :math:`\Omega_i` before a client's first round, >= 0 (FedIF 0, AFedSV 0.5).
    smooth_update : bool
        ``False``: :math:`\Omega_i = \Psi_i`.
    bias_correction : bool
        Take out what is left of ``initial``, so that a client of few rounds is not held down by
        them: with n_i the rounds that client i took part in,

        .. math:: \hat\Omega_i = \frac{\Omega_i - (1 - \gamma)^{n_i}\, \mathrm{initial}}
                  {1 - (1 - \gamma)^{n_i}}

        which is the weighted mean of its :math:`\Psi_i`, later ones counting more. All scores and
        weights are then :math:`\hat\Omega`; a client never seen keeps ``initial``.

    Raises
    ------
    ValuationError
        If gamma or initial lies outside its range.

    References
    ----------
    FedIF, equation for the global influence; methods of AFedSV (KDD 2023).
    """

    def __init__(
        self,
        gamma: float,
        *,
        initial: float = 0.0,
        smooth_update: bool = True,
        bias_correction: bool = False,
    ) -> None:
        if not 0.0 < gamma <= 1.0:
            raise ValuationError(f"gamma is {gamma}; allowed: 0 < gamma <= 1")
        if not (math.isfinite(initial) and initial >= 0.0):
            raise ValuationError(f"initial is {initial}; allowed: finite, >= 0")
        self.gamma = gamma
        self.initial = initial
        self.smooth_update = smooth_update
        self.bias_correction = bias_correction and smooth_update
        self._scores: dict[int, float] = {}
        self._rounds: dict[int, int] = {}  # That each client took part in.
        self._accumulative: dict[int, float] = {}

    def __repr__(self) -> str:
        """Name the rate, and the contributions from the highest to the lowest."""
        ranked = sorted(self._scores.items(), key=lambda item: -item[1])
        shown = [f"{client_id}: {score:.3f}" for client_id, score in ranked]
        if len(shown) > _SHOWN:
            shown = [*shown[: _SHOWN // 2], "...", *shown[-_SHOWN // 2 :]]
        listed = f", {{{', '.join(shown)}}}" if shown else ""
        return f"ContributionLedger(gamma={self.gamma}, {len(ranked)} clients{listed})"

    @property
    def scores(self) -> dict[int, float]:
        r""":math:`\Omega` of every client that ever took part."""
        return {client_id: self._score(client_id) for client_id in self._scores}

    @property
    def accumulative_influence(self) -> dict[int, float]:
        r"""The paper's :math:`INF_i = \sum_t \langle w_{t-1} - w_i, g_t \rangle`, by client."""
        return dict(self._accumulative)

    def update(self, client_ids: Sequence[int], normalized_scores: Tensor) -> Tensor:
        r"""Take in one round and return the participants' new :math:`\Omega`.

        Parameters
        ----------
        client_ids : sequence of int
            The m participants, distinct.
        normalized_scores : Tensor
            ``[m]``, finite: :math:`\Psi` (or :math:`\Phi` where round normalisation is off).

        Returns
        -------
        Tensor
            ``[m]``, float64.

        Raises
        ------
        ValuationError
            If lengths differ, a client appears twice or a score is not finite.
        """
        values = _checked(client_ids, normalized_scores)
        for client_id, value in zip(client_ids, values, strict=True):
            if self.smooth_update:
                previous = self._scores.get(client_id, self.initial)
                value = (1.0 - self.gamma) * previous + self.gamma * value
            self._scores[client_id] = value
            self._rounds[client_id] = self._rounds.get(client_id, 0) + 1
        return self._of(client_ids)

    def accumulate(self, client_ids: Sequence[int], influences: Tensor) -> Tensor:
        """Add un-normalised influences ``[m]`` to INF and return the participants' sums ``[m]``."""
        for client_id, value in zip(client_ids, _checked(client_ids, influences), strict=True):
            self._accumulative[client_id] = self._accumulative.get(client_id, 0.0) + value
        return torch.tensor([self._accumulative[i] for i in client_ids], dtype=torch.float64)

    def weights(self, client_ids: Sequence[int]) -> Tensor:
        r"""Return the participants' aggregation weights.

        .. math:: p_i = \max(\Omega_i, 0) / \sum_{j \in S_t} \max(\Omega_j, 0)

        Uniform, with a warning, if every participant's contribution is 0.

        Returns
        -------
        Tensor
            ``[m]``, float64, >= 0, sums to 1.
        """
        return _normalized(self._of(client_ids).clamp_min(0.0))

    def population_weights(self, client_ids: Sequence[int], num_clients: int) -> Tensor:
        r"""Return the coefficients of AFedSV's unbiased form.

        .. math:: a_i = \frac{\Omega_i}{\sum_{j=1}^K \Omega_j} \cdot \frac{K}{m}, \qquad
                  w_t = w_{t-1} + \sum_{i \in S_t} a_i (w_i - w_{t-1})

        with K = ``num_clients`` all clients of the federation and m the participants.
        Negative contributions count as 0; clients never seen count as ``initial``.

        Returns
        -------
        Tensor
            ``[m]``, float64, >= 0; they sum to 1 only on average over the rounds.
        """
        own = self._of(client_ids).clamp_min(0.0)
        seen = sum(max(score, 0.0) for score in self.scores.values())
        unseen = max(num_clients - len(self._scores), 0) * self.initial
        total = seen + unseen
        if not total > 0.0 or not bool((own > 0).any()):
            return _normalized(own)
        return own / total * (num_clients / len(client_ids))

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "initial": self.initial,
            "scores": dict(self._scores),
            "rounds": dict(self._rounds),
            "accumulative": dict(self._accumulative),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.initial = state["initial"]
        self._scores = dict(state["scores"])
        self._rounds = dict(state["rounds"])
        self._accumulative = dict(state["accumulative"])

    def _of(self, client_ids: Sequence[int]) -> Tensor:
        return torch.tensor([self._score(i) for i in client_ids], dtype=torch.float64)

    def _score(self, client_id: int) -> float:
        """Return a client's Omega, bias-corrected where that is on."""
        score = self._scores.get(client_id, self.initial)
        rounds = self._rounds.get(client_id, 0)
        if not (self.bias_correction and rounds):
            return score
        left = (1.0 - self.gamma) ** rounds
        return (score - left * self.initial) / (1.0 - left)


def _normalized(values: Tensor) -> Tensor:
    total = values.sum()
    if values.numel() == 0:
        return values
    if not bool(total > 0):
        logger.warning("every participant's contribution is 0: uniform weights this round")
        return torch.full_like(values, 1.0 / values.numel())
    return values / total


def _checked(client_ids: Sequence[int], values: Tensor) -> list[float]:
    if values.shape != (len(client_ids),):
        raise ValuationError(f"{len(client_ids)} clients, but scores of shape {list(values.shape)}")
    if len(set(client_ids)) != len(client_ids):
        raise ValuationError("a client appears twice in one round")
    listed: list[float] = values.to(torch.float64).tolist()
    for client_id, value in zip(client_ids, listed, strict=True):
        if not math.isfinite(value):
            raise ValuationError(f"client {client_id} has score {value}")
    return listed
