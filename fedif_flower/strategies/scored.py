"""Strategies that aggregate by smoothed scores: any valuation, one ledger of weight scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Self, Unpack

import torch
from torch import Tensor

from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ValuationError, is_count, require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import BaseArguments, require_kind, with_names_of
from fedif_flower.server.summary import Scoring
from fedif_flower.settings import Setting
from fedif_flower.stages import Clip, LossBound, Stage
from fedif_flower.valuation import Validation, Valuation
from fedif_flower.valuation.ledger import Gamma, ScoreLedger, Scores, WeightScope, min_max

logger = logging.getLogger(__name__)

_NORMALIZATION = Setting("min-max over the round (off: an ablation)")
_SMOOTH_UPDATE = Setting("smooth over rounds with rate gamma (off: an ablation)")
RoundNormalization = Annotated[bool, _NORMALIZATION]


@dataclass(frozen=True)
class Weighting(CheckedFields):
    r"""How scores become weights; what is ``None`` is as the strategy itself has it.

    Parameters
    ----------
    initial : float, optional
        Weight score :math:`\Omega` of a client never seen, >= 0. Default: 0; AFedSV's 0.5.
    round_normalization : bool, optional
        ``False``: :math:`\Psi = \Phi`. Default: ``True``; ShapFed's ``False``.
    smooth_update : bool, optional
        ``False``: :math:`\Omega = \Psi`. Default: ``True``; FedSV's ``False``.
    bias_correction : bool
        A client of few rounds is not held down by them (see
        :class:`~fedif_flower.valuation.ledger.ScoreLedger`).
    weight_scope : str
        ``"participants"``: weights sum to 1 over the round's clients. ``"population"``: AFedSV's
        unbiased form over all K clients (see
        :meth:`~fedif_flower.valuation.ledger.ScoreLedger.population_weights`).
    num_clients : int, optional
        K for ``"population"``, or every node seen so far, where they are more. Default: those.
    """

    made_of: ClassVar[Mapping[str, None]] = MappingProxyType({"initial": None})

    initial: float | None = None
    round_normalization: Annotated[bool | None, _NORMALIZATION] = None
    smooth_update: Annotated[bool | None, _SMOOTH_UPDATE] = None
    bias_correction: Annotated[
        bool,
        Setting(
            "the weight score of a client with few rounds is the mean of its rounds, not held "
            "down or up by where it started"
        ),
    ] = False
    weight_scope: Annotated[
        WeightScope,
        Setting(
            "weights sum to 1 over the round's clients, or AFedSV's unbiased form over all clients"
        ),
    ] = "participants"
    num_clients: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for what is out of range."""
        super().__post_init__()
        fits = self.num_clients is None or is_count(self.num_clients, 1)
        require(fits, "num_clients", self.num_clients, "an integer >= 1")


@dataclass(frozen=True)
class FullWeighting(Weighting):
    """How a strategy's scores become weights where nothing else is said: FedIF's and others'."""

    initial: float = 0.0
    round_normalization: RoundNormalization = True
    smooth_update: Annotated[bool, _SMOOTH_UPDATE] = True

    def changed_by(self, weighting: Weighting) -> Self:
        """Return this one with all that another says."""
        said = {name: value for name, value in vars(weighting).items() if value is not None}
        return replace(self, **said)


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
    validation : Valuation
        Gives the raw scores :math:`\Phi` of a round's clients. Strategies with a valuation of
        their own, such as FedIF, make it of a Validation.
    gamma : float
        Rate of the smooth update, in (0, 1].
    weighting : Weighting, optional
        How scores become weights. Default: :attr:`default_weighting`, the paper's, which also has
        what a given one leaves out.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    made_of = MappingProxyType({"weighting": FullWeighting})
    default_weighting: Weighting = FullWeighting()
    default_stages = staticmethod(bounds)
    ledger: ScoreLedger
    _warned_of_two = False

    def __init__(
        self,
        validation: Valuation,
        *,
        gamma: Gamma = 0.3,
        weighting: Weighting | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        require_kind(self, "validation", validation, Valuation)
        is_weighting = weighting is None or isinstance(weighting, Weighting)
        require(is_weighting, "weighting", weighting, "a Weighting, such as Weighting(initial=1.0)")
        super().__init__(**with_names_of(validation.validation or validation, base))
        self.valuation = validation
        self.validation = validation.validation
        own = FullWeighting().changed_by(self.default_weighting)
        self.weighting = own.changed_by(weighting or Weighting())
        self.ledger = ScoreLedger(
            gamma,
            initial=self.weighting.initial,
            smooth_update=self.weighting.smooth_update,
            bias_correction=self.weighting.bias_correction,
        )

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

    def require_members(self, count: int) -> None:
        """Raise ConfigError where so many members cannot be valued."""
        require_few_enough(self.valuation, count)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return weights ``[m]`` and the scores behind them."""
        scores = finite_scores(self.valuation, updates)  # Phi [m]
        normalized = self.normalize(scores, updates.server_round)  # Psi [m]
        weight_scores = self.ledger.update(updates.client_ids, normalized)  # Omega [m]
        return Aggregation(
            weights=self.weights_of(updates.client_ids),  # p [m]
            scores=scores.values,
            normalized=normalized,
            weight_scores=weight_scores,
            accumulative=self.accumulate(scores, updates),
            evaluations=scores.evaluations,
        )

    def normalize(self, scores: Scores, server_round: int) -> Tensor:
        """Return a round's scores ``[m]`` mapped to [0, 1]; as they are where that is off."""
        if not self.weighting.round_normalization:
            return scores.values
        normalized = min_max(scores.values, scores.resolution)
        self._warn_of_two(server_round, normalized)
        return normalized

    def weights_of(self, client_ids: Sequence[int]) -> Tensor:
        """Return the weights ``[m]`` that follow from the weight scores of a round's clients."""
        if self.weighting.weight_scope == "population":
            num_clients = max(self.weighting.num_clients or 0, len(self.nodes.known))
            return self.ledger.population_weights(client_ids, num_clients, self.chance)
        return self.ledger.weights(client_ids)

    def accumulate(self, scores: Scores, updates: RoundUpdates) -> Tensor | None:
        """Return the accumulative influence INF ``[m]``; ``None`` where scores are none."""
        if scores.influences is None:
            return None
        warn_of_zeros(updates, scores.influences)
        return self.ledger.accumulate(updates.client_ids, scores.influences)

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


def require_few_enough(valuation: Valuation, count: int) -> None:
    """Raise ConfigError where a valuation that says so is of fewer members than ``count``."""
    if hasattr(valuation, "require_members"):
        valuation.require_members(count)


def finite_scores(valuation: Valuation, updates: RoundUpdates) -> Scores:
    """Return a round's scores, float64; what is not finite is the least of the others.

    Raises
    ------
    ValuationError
        If they are no scores, not one of each client, or none is finite.
    """
    scores = valuation.score(updates)
    name = type(valuation).__name__
    if not isinstance(scores, Scores):
        raise ValuationError(
            f"{name}.score returns {type(scores).__name__}; allowed: Scores, as Scores(values)"
        )
    num_clients = updates.num_clients
    values = torch.as_tensor(scores.values, dtype=torch.float64).detach()
    finite = values.isfinite()
    if values.shape != (num_clients,) or not bool(finite.any()):
        words = f"the scores {values.tolist()}; expected a number for each of {num_clients} clients"
        raise ValuationError(f"{name} gives {words}")
    # A client can make its own score no number: others keep theirs.
    return replace(scores, values=values.where(finite, values[finite].min()))


def valuation_on(
    strategy: ScreenedStrategy,
    validation: Validation | Valuation,
    value: Callable[[Validation], Valuation],
) -> Valuation:
    """Return the valuation that a strategy was given, or its own on a validation set.

    Parameters
    ----------
    strategy : ScreenedStrategy
        For errors.
    validation : Validation or Valuation
        What it was given.
    value : callable
        Returns the strategy's own valuation on a validation set.

    Raises
    ------
    ConfigError
        If it was given something else.
    """
    require_kind(strategy, "validation", validation, Validation, Valuation)
    if isinstance(validation, Validation):
        return value(validation)
    return validation
