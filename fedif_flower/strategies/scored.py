"""The base of strategies that aggregate by smoothed scores: any valuation, one ledger."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from fedif_flower.errors import require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.stages import Clip, LossBound, Stage
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.scoring import Scoring
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.state import Stateful
from fedif_flower.valuation import Validation, Valuation
from fedif_flower.valuation.ledger import WEIGHT_SCOPES, ScoreLedger, min_max
from fedif_flower.valuation.score_guard import ScoreGuard


class ScoredStrategy(ScreenedStrategy):
    r"""Score a round's clients, smooth the scores over rounds, aggregate by them.

    .. math:: \Psi = \mathrm{minmax}(\Phi), \quad
              \Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma \Psi_i, \quad
              p_i = \Omega_i / \sum_{j \in S_t} \Omega_j

    Parameters
    ----------
    valuation : Valuation
        Gives the raw scores :math:`\Phi` of a round's clients.
    gamma : float
        Rate of the smooth update, in (0, 1].
    initial : float
        Weight score :math:`\Omega` of a client never seen, >= 0.
    round_normalization : bool
        ``False``: :math:`\Psi = \Phi`.
    smooth_update : bool
        ``False``: :math:`\Omega = \Psi`.
    bias_correction : bool
        A client of few rounds is not held down by them (see
        :class:`~fedif_flower.valuation.ledger.ScoreLedger`).
    weight_scope : str
        ``"participants"``: weights sum to 1 over the round's clients. ``"population"``: AFedSV's
        unbiased form over all K clients (see
        :meth:`~fedif_flower.valuation.ledger.ScoreLedger.population_weights`).
    guard : ScoreGuard, optional
        Options against scores that are farmed; ``None``: the paper's scores alone.
    num_clients : int, optional
        K for ``"population"``; default: every node seen so far.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`; ``trainable_keys`` and
        ``tied_keys`` default to the valuation's own.
    """

    def __init__(
        self,
        valuation: Valuation,
        *flower: Any,
        gamma: float = 0.3,
        initial: float = 0.0,
        round_normalization: bool = True,
        smooth_update: bool = True,
        bias_correction: bool = False,
        weight_scope: str = "participants",
        guard: ScoreGuard | None = None,
        num_clients: int | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        known = weight_scope in WEIGHT_SCOPES
        require(known, "weight_scope", weight_scope, ", ".join(WEIGHT_SCOPES))
        base.setdefault("trainable_keys", valuation.parameter_names)
        base.setdefault("tied_keys", valuation.tied_names)
        super().__init__(*flower, **base)
        self.valuation = valuation
        self.validation = valuation.validation
        self.ledger = ScoreLedger(
            gamma, initial=initial, smooth_update=smooth_update, bias_correction=bias_correction
        )
        self.round_normalization = round_normalization
        self.weight_scope = weight_scope
        self.guard = guard
        self.num_clients = num_clients

    @classmethod
    def default_stages(cls) -> list[Stage]:
        """Return bounds on lengths and on the validation loss."""
        return [Clip(2.0), LossBound()]

    @property
    def judge(self) -> Validation | None:
        """The held-out data behind the scores."""
        return self.validation

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds: the weight scores too."""
        guard: dict[str, Stateful] = {"guard": self.guard} if self.guard else {}
        return super().stateful() | {"ledger": self.ledger} | guard

    @property
    def weight_scores(self) -> dict[str, float]:
        r"""Each client's :math:`\Omega`, by what logs call it (see ``identify``)."""
        scores = self.ledger.scores
        labels = self.nodes.labels(scores)
        return {labels[i]: score for i, score in scores.items()}

    @property
    def scoring(self) -> Scoring:
        """How the weight scores come about."""
        anchored = self.guard is not None and self.guard.anchored
        return Scoring.of(self.ledger, min_max=self.round_normalization and not anchored)

    def prepare(self, params: Tensor, buffers: dict[str, Tensor]) -> None:
        """Let the valuation begin while the clients train."""
        self.valuation.prepare(params, buffers)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return weights ``[m]`` and the scores behind them."""
        scores, client_ids = self.valuation.score(updates), updates.client_ids
        normalized = min_max(scores.values) if self.round_normalization else scores.values
        if self.guard:
            normalized = self.guard.normalized(scores.values, normalized, updates.squared_norms)
        weight_scores = self.ledger.update(client_ids, normalized)
        accumulative = (
            self.ledger.accumulate(client_ids, scores.influences)
            if scores.influences is not None
            else None
        )
        if self.weight_scope == "population":
            population = self.num_clients or len(self.nodes.known)
            weights = self.ledger.population_weights(client_ids, population)
        else:
            weights = self.ledger.weights(client_ids)
        if self.guard:
            weights = self.guard.weights(weights, client_ids, scores.values)
        return Aggregation(
            weights=weights,
            scores=scores.values,
            normalized=normalized,
            weight_scores=weight_scores,
            accumulative=accumulative,
            evaluations=scores.evaluations,
        )
