"""The base of strategies that aggregate by smoothed scores: any valuation, one ledger."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Unpack

import torch
from torch import Tensor

from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ValuationError
from fedif_flower.making import make
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import DEFAULTS, BaseArguments, naming, require_kind
from fedif_flower.server.summary import Scoring
from fedif_flower.settings import Setting
from fedif_flower.stages import Clip, LossBound, Stage
from fedif_flower.valuation import Validation, Valuation
from fedif_flower.valuation.ledger import Gamma, ScoreLedger, Scores, WeightScope, min_max

logger = logging.getLogger(__name__)

RoundNormalization = Annotated[bool, Setting("min-max over the round (off: an ablation)")]


@dataclass(frozen=True)
class Weighting(CheckedFields):
    r"""How scores become weights.

    Parameters
    ----------
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
    num_clients : int, optional
        K for ``"population"``; default: every node seen so far.
    """

    made_of: ClassVar[Mapping[str, None]] = MappingProxyType({"initial": None})

    initial: float = 0.0
    round_normalization: RoundNormalization = True
    smooth_update: Annotated[
        bool, Setting("smooth over rounds with rate gamma (off: an ablation)")
    ] = True
    bias_correction: Annotated[
        bool,
        Setting(
            "the weight score of a client of few rounds is the mean of these, not held down (or "
            "up) by where it started"
        ),
    ] = False
    weight_scope: Annotated[
        WeightScope,
        Setting(
            "weights sum to 1 over the round's clients, or AFedSV's unbiased form over all clients"
        ),
    ] = "participants"
    num_clients: int | None = None


def bounds() -> list[Stage]:
    """Return bounds on lengths and on the validation loss, for strategies that are given none."""
    return [Clip(2.0), LossBound()]


class ScoredStrategy(ScreenedStrategy):
    r"""Score a round's clients, smooth the scores over rounds, aggregate by them.

    .. math:: \Psi = \mathrm{minmax}(\Phi), \quad
              \Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma \Psi_i, \quad
              p_i = \Omega_i / \sum_{j \in S_t} \Omega_j

    Parameters
    ----------
    validation : Validation or Valuation
        Gives the raw scores :math:`\Phi` of a round's clients. A strategy with a valuation of its
        own, such as FedIF, makes it of a Validation.
    gamma : float
        Rate of the smooth update, in (0, 1].
    weighting : Weighting, optional
        How scores become weights. Default: :attr:`default_weighting`, the paper's.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    made_of = MappingProxyType({"weighting": Weighting})
    default_weighting = Weighting()
    default_stages = staticmethod(bounds)
    ledger: ScoreLedger
    _warned_of_two = False

    def __init__(
        self,
        validation: Validation | Valuation,
        *,
        gamma: Gamma = 0.3,
        weighting: Weighting | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        valuation = self.valued(validation, base.get("setup", DEFAULTS).seed)
        super().__init__(**naming(base, valuation.validation or valuation))
        weighting = self.default_weighting if weighting is None else weighting
        self.weighting = weighting
        self.valuation = valuation
        self.validation = valuation.validation
        self.ledger = ScoreLedger(
            gamma,
            initial=weighting.initial,
            smooth_update=weighting.smooth_update,
            bias_correction=weighting.bias_correction,
        )

    def valued(self, validation: Validation | Valuation, seed: int) -> Valuation:
        """Return what scores a round: what was given, or the strategy's own on a Validation."""
        return valued(self, validation, seed)

    @property
    def chance(self) -> float | None:
        """The chance with which each client takes part in a round; ``None``: m of K do."""
        return None

    @property
    def scoring(self) -> Scoring:
        """How the weight scores come about."""
        return Scoring.of(self.ledger, min_max=self.weighting.round_normalization)

    def prepare(self, params: Tensor, buffers: dict[str, Tensor]) -> None:
        """Let the valuation begin while the clients train."""
        self.valuation.prepare(params, buffers)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return weights ``[m]`` and the scores behind them."""
        scores, client_ids = numbers(self.valuation, updates), updates.client_ids
        normalized = scores.values
        if self.weighting.round_normalization:
            normalized = min_max(normalized, scores.resolution)
            self._warn_of_two(updates.server_round, normalized)
        weight_scores = self.ledger.update(client_ids, normalized)
        accumulative = None
        if scores.influences is not None:
            warn_of_zeros(updates, scores.influences)
            accumulative = self.ledger.accumulate(client_ids, scores.influences)
        if self.weighting.weight_scope == "population":
            population = self.weighting.num_clients or len(self.nodes.known)
            weights = self.ledger.population_weights(client_ids, population, self.chance)
        else:
            weights = self.ledger.weights(client_ids)
        return Aggregation(
            weights=weights,
            scores=scores.values,
            normalized=normalized,
            weight_scores=weight_scores,
            accumulative=accumulative,
            evaluations=scores.evaluations,
        )

    def _warn_of_two(self, server_round: int, normalized: Tensor) -> None:
        """Say once that min-max leaves one of two members nothing, however close they are."""
        if self._warned_of_two or len(normalized) != 2 or bool(normalized.all()):
            return
        self._warned_of_two = True
        logger.warning(
            "round %d: of two members the round's normalisation gives one 1 and the other 0, "
            "however close their scores are; use Weighting(round_normalization=False), or let at "
            "least three members take part in a round",
            server_round,
        )


def warn_of_zeros(updates: RoundUpdates, influences: Tensor) -> None:
    """Tell the log of a round whose influences ``[m]`` are all exactly 0: it parts nobody."""
    if bool(influences.any()):
        return
    reason = "the gradient of the validation loss is 0 along each of them"
    if not bool(updates.squared_norms.any()):
        reason = "each of them is 0"
    words = "round %d: the influence of all %d updates is exactly 0, since %s: nobody counts more"
    logger.warning(words, updates.server_round, updates.num_clients, reason)


def numbers(valuation: Valuation, updates: RoundUpdates) -> Scores:
    """Return a round's scores, float64; what is not finite is the least of the others.

    Raises
    ------
    ValuationError
        If they are not one of each client, or none is finite.
    """
    scores, m = valuation.score(updates), updates.num_clients
    values = torch.as_tensor(scores.values, dtype=torch.float64)
    finite = values.isfinite()
    if values.shape != (m,) or not bool(finite.any()):
        words = f"the scores {values.tolist()}; expected a number for each of {m} clients"
        raise ValuationError(f"{type(valuation).__name__} gives {words}")
    # A client can make its own score no number: others keep theirs.
    return replace(scores, values=values.where(finite, values[finite].min()))


def valued(strategy: ScreenedStrategy, given: Validation | Valuation, seed: int) -> Valuation:
    """Return a valuation that was given, or what a strategy's ``made_of`` makes of a Validation."""
    maker = strategy.made_of.get("validation")
    if maker is not None and isinstance(given, Validation):
        offered = {"validation": given, "seed": seed}
        made: Valuation = make(type(strategy).__name__, maker, offered)
        return made
    require_kind(strategy, "validation", given, *(Validation,) * bool(maker), Valuation)
    assert not isinstance(given, Validation)
    return given
