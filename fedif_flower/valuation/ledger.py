"""From a round's scores to aggregation weights: normalise, smooth, weigh.

FedIF and AFedSV share this file. They differ in the valuation that gives the scores.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.arithmetic import all_finite
from fedif_flower.client_table import ClientTable
from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ValuationError
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import Setting
from fedif_flower.valuation.validation import Validation

# The columns of the clients' table, and their values for a client that took part in no round.
_COLUMNS = MappingProxyType({"score": math.nan, "rounds": 0.0, "accumulative": math.nan})
_MOST_SHOWN = 100  # How many clients are shown when a ledger is printed.
WeightScope = Literal["participants", "population"]
Gamma = Annotated[float, Setting("rate of the smooth update", gt=0, le=1)]

logger = logging.getLogger(__name__)


def min_max(scores: Tensor, resolution: float = 0.0) -> Tensor:
    r"""Map a round's scores to [0, 1].

    .. math:: \Psi_i = (\Phi_i - \min \Phi) / (\max \Phi - \min \Phi)

    with :math:`\Phi` the scores of the m participants. If all scores are equal, or m = 1, every
    :math:`\Psi_i` is 1. Scores that differ by rounding or sampling alone count as equal: otherwise
    these differences would be stretched to 0 and 1.

    Parameters
    ----------
    scores : Tensor
        ``[m]``, m >= 1, finite.
    resolution : float
        >= 0. Scores count as equal if max - min is no larger than this: rounding, or the draws of
        an estimator, may put equal clients so far apart (see :attr:`Scores.resolution`). It counts
        as four roundings (eps) of the largest absolute score, if that is more.

    Returns
    -------
    Tensor
        ``[m]``, in [0, 1], same dtype.

    Raises
    ------
    ValuationError
        If there is no score, or one is not finite: then no score would differ from another.

    References
    ----------
    FedIF, equation for the normalised round influence.
    """
    if not len(scores):
        raise ValuationError("there are no scores to normalise")
    if not all_finite(scores):
        raise ValuationError("a score to normalise is not finite")
    low = scores.min()
    high = scores.max()
    # Halves, so that the difference of two finite scores cannot overflow.
    spread = high / 2 - low / 2
    rounding = 4 * torch.finfo(scores.dtype).eps * float(scores.abs().max())
    if not bool(spread > max(rounding, resolution) / 2):
        return torch.ones_like(scores)
    return ((scores / 2 - low / 2) / spread).clamp(0.0, 1.0)


@dataclass(frozen=True)
class Scores:
    """A round's raw scores.

    Attributes
    ----------
    values : Tensor
        ``[m]``; higher is better. A score that is not finite counts as the lowest finite one.
    influences : Tensor, optional
        ``[m]``: un-normalised influences, which the ledger adds up.
    evaluations : int
        How many passes over the validation set the scores took.
    resolution : float
        How far apart rounding or sampling may put the scores of equal clients, >= 0.
    """

    values: Tensor
    influences: Tensor | None = None
    evaluations: int = 0
    resolution: float = 0.0


@runtime_checkable
class Valuation(Protocol):
    """Scores a round's clients."""

    @property
    def validation(self) -> Validation | None:
        """The held-out data behind the scores, by which steps are judged, too; ``None``: none.

        Without held-out data, the valuation itself has the model's ``parameter_names`` and
        ``tied_names``, which a :class:`~fedif_flower.valuation.validation.Validation` has.
        """

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Begin to compute what depends on the global model alone, while the clients train."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Score the round's clients."""


@dataclass(eq=False)
class ScoreLedger(CheckedFields):
    r"""Each client's weight score over the rounds, and the weights that follow from it.

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
        Remove what is left of ``initial``, so that it does not hold down a client that took part in
        few rounds: with :math:`n_i` the number of rounds that client i took part in,

        .. math:: \hat\Omega_i = \frac{\Omega_i - (1 - \gamma)^{n_i}\, \mathrm{initial}}
                  {1 - (1 - \gamma)^{n_i}}

        which is the weighted mean of its :math:`\Psi_i`, in which later ones count more. All weight
        scores are then :math:`\hat\Omega`; a client that took part in no round has ``initial``.

    Raises
    ------
    ConfigError
        If gamma or initial lies outside its range.

    References
    ----------
    FedIF, equation for the global influence; methods of AFedSV (KDD 2023).
    """

    gamma: Gamma
    _: KW_ONLY
    initial: Annotated[float, Setting("of a client never seen", ge=0)] = 0.0
    smooth_update: bool = True
    bias_correction: bool = False
    # A score is NaN before a client's first round; "rounds" counts those that it took part in.
    _clients: ClientTable = field(
        default_factory=lambda: ClientTable(**_COLUMNS),
        init=False,
        repr=False,
    )

    def __str__(self) -> str:
        """Return the weight scores by client id, a line each, the highest first."""
        ranked = sorted(self.scores.items(), key=lambda item: (-item[1], item[0]))
        if not ranked:
            return "no weight scores yet"
        lines = [f"{client_id} {score:.4f}" for client_id, score in ranked[:_MOST_SHOWN]]
        hidden = ranked[_MOST_SHOWN:]
        if hidden:
            _, highest = hidden[0]
            lines.append(f"and {len(hidden)} more, at most {highest:.4f}")
        return "\n".join(lines)

    @property
    def scores(self) -> dict[int, float]:
        r""":math:`\Omega` of every client that ever took part."""
        client_ids = list(self._column("score"))
        return dict(zip(client_ids, self.scores_of(client_ids).tolist(), strict=True))

    def scores_of(self, client_ids: Sequence[int]) -> Tensor:
        r"""Return these clients' :math:`\Omega` ``[m]``: ``initial`` before their first round."""
        score = self._clients.read(client_ids, "score")
        rounds = self._clients.read(client_ids, "rounds")
        return torch.from_numpy(self._smoothed(score, rounds))

    @property
    def accumulative_influence(self) -> dict[int, float]:
        r"""The paper's :math:`INF_i = \sum_t \langle w_{t-1} - w_i, g_t \rangle`, by client."""
        return self._column("accumulative")

    def update(self, client_ids: Sequence[int], normalized_scores: Tensor) -> Tensor:
        r"""Update the ledger by one round, and return the participants' new :math:`\Omega`.

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
            If a score is not finite.
        """
        values = _checked(client_ids, normalized_scores)
        if self.smooth_update:
            previous = self._clients.read(client_ids, "score")
            previous = np.where(np.isnan(previous), self.initial, previous)
            values = (1.0 - self.gamma) * previous + self.gamma * values
        rounds = self._clients.read(client_ids, "rounds") + 1
        self._clients.write(client_ids, score=values, rounds=rounds)
        return self.scores_of(client_ids)

    def accumulate(self, client_ids: Sequence[int], influences: Tensor) -> Tensor:
        """Add un-normalised influences ``[m]`` to INF and return the participants' sums ``[m]``."""
        values = _checked(client_ids, influences)
        sums = np.nan_to_num(self._clients.read(client_ids, "accumulative")) + values
        self._clients.write(client_ids, accumulative=sums)
        return torch.from_numpy(sums)

    def weights(self, client_ids: Sequence[int]) -> Tensor:
        r"""Return the participants' aggregation weights.

        .. math:: p_i = \max(\Omega_i, 0) / \sum_{j \in S_t} \max(\Omega_j, 0)

        If no participant has a positive weight score, the weights are uniform, and the log warns.

        Returns
        -------
        Tensor
            ``[m]``, float64, >= 0, sums to 1.
        """
        return _normalized(self.scores_of(client_ids).clamp_min(0.0))

    def population_weights(
        self, client_ids: Sequence[int], num_clients: int, chance: float | None = None
    ) -> Tensor:
        r"""Return the coefficients of AFedSV's unbiased form.

        .. math:: a_i = \frac{\Omega_i}{\sum_{j=1}^K \Omega_j} \cdot \frac{1}{q}, \qquad
                  w_t = w_{t-1} + \sum_{i \in S_t} a_i (w_i - w_{t-1})

        with :math:`S_t` the round's m participants, K = ``num_clients`` the number of all clients
        of the federation (or of those seen so far, if they are more), and q the chance with which a
        client takes part in a round: ``chance``, or m / K if m of K clients are drawn.

        Negative weight scores count as 0. A client never seen counts as ``initial``. If that is 0,
        it counts as the mean of the n clients seen so far, since the step would be K / n times too
        long otherwise:

        .. math:: \sum_{j=1}^K \Omega_j = \frac{K}{n} \sum_{j \text{ seen}} \Omega_j

        If all participants count as 0, each has :math:`1 / m`: the round does not tell them apart.

        Returns
        -------
        Tensor
            ``[m]``, float64, >= 0; they sum to 1 only on average over the rounds, and where
            ``initial`` is 0 and m of K are drawn, in the first round as well.
        """
        participants = self.scores_of(client_ids).clamp_min(0.0)  # [m]
        score = self._clients.column("score")
        rounds = self._clients.column("rounds")
        is_seen = ~np.isnan(score)
        total_of_seen = float(self._smoothed(score, rounds)[is_seen].clip(min=0.0).sum())
        num_seen = int(is_seen.sum())
        # More clients may have come since the number was set.
        num_clients = max(num_clients, num_seen)
        num_unseen = num_clients - num_seen
        score_of_unseen = self.initial or total_of_seen / max(num_seen, 1)
        total = total_of_seen + num_unseen * score_of_unseen
        if not total > 0.0 or not bool((participants > 0).any()):
            return _normalized(participants)
        if chance is None:
            return participants / total * (num_clients / len(client_ids))
        return participants / total / chance

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to go on."""
        return {"initial": self.initial, "clients": self._clients.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.initial = state["initial"]
        self._clients.load_state_dict(state["clients"])

    def _smoothed(
        self, score: NDArray[np.float64], rounds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return Omega ``[n]`` from the smoothed scores, bias-corrected if the setting says so."""
        score = np.where(np.isnan(score), self.initial, score)
        if not (self.bias_correction and self.smooth_update):
            return score
        share_of_initial = (1.0 - self.gamma) ** rounds
        # 1 for a client without a round, so that nothing is divided by 0.
        share_of_rounds = np.where(rounds > 0, 1.0 - share_of_initial, 1.0)
        corrected = (score - share_of_initial * self.initial) / share_of_rounds
        return np.where(rounds > 0, corrected, score)

    def _column(self, name: str) -> dict[int, float]:
        """Return a column by client id, without the clients that have no value (NaN) in it."""
        values = self._clients.column(name).tolist()
        by_client = zip(self._clients.client_ids, values, strict=True)
        return {client_id: value for client_id, value in by_client if not math.isnan(value)}


def _normalized(values: Tensor) -> Tensor:
    """Return values ``[m]``, >= 0, divided by their sum; uniform weights if all are 0."""
    total = values.sum()
    if not bool(total > 0):
        if values.numel() > 1:  # A single participant has all the weight in any case.
            logger.warning("every participant's weight score is 0: uniform weights this round")
        return torch.full_like(values, 1.0 / values.numel())
    return values / total


def _checked(client_ids: Sequence[int], values: Tensor) -> NDArray[np.float64]:
    """Return scores as an array; raise ValuationError naming a client whose score is not finite."""
    checked: NDArray[np.float64] = values.detach().cpu().double().numpy()
    for client_id, value in zip(client_ids, checked.tolist(), strict=True):
        if not math.isfinite(value):
            raise ValuationError(f"client {client_id} has score {value}")
    return checked
