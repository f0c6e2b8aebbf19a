"""The base of strategies that weigh by smoothed scores, from any valuation."""

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
_BIAS_CORRECTION = Setting(
    "the weight score of a client with few rounds is the mean of its rounds, not held down or up "
    "by where it started"
)
_WEIGHT_SCOPE = Setting(
    "weights sum to 1 over the round's clients, or AFedSV's unbiased form over all clients"
)
RoundNormalization = Annotated[bool, _NORMALIZATION]


@dataclass(frozen=True)
class Weighting(CheckedFields):
    r"""How a round's scores become weights; for a field that is ``None``, as the strategy itself.

    The scores of a round, :math:`\Phi`, are mapped to [0, 1], which gives :math:`\Psi`. These are
    smoothed over rounds, which gives the weight scores :math:`\Omega`. Weights are proportional to
    the weight scores.

    Parameters
    ----------
    initial : float, optional
        The weight score :math:`\Omega` of a client never seen, >= 0. Default: 0; for AFedSV 0.5.
    round_normalization : bool, optional
        Whether scores are mapped to [0, 1]; if not, :math:`\Psi = \Phi`. Default: ``True``; for
        ShapFed ``False``.
    smooth_update : bool, optional
        Whether scores are smoothed over rounds; if not, :math:`\Omega = \Psi`. Default: ``True``;
        for FedSV ``False``.
    bias_correction : bool, optional
        Whether the part of a weight score that is left of ``initial`` is taken out, so that it does
        not hold down a client of few rounds (see
        :class:`~fedif_flower.valuation.ledger.ScoreLedger`). Default: ``False``.
    weight_scope : str, optional
        ``"participants"``: weights sum to 1 over the round's clients. ``"population"``: AFedSV's
        unbiased form over all K clients (see
        :meth:`~fedif_flower.valuation.ledger.ScoreLedger.population_weights`). Default:
        ``"participants"``.
    num_clients : int, optional
        The number K of clients for ``"population"``. Default, and the least that counts: the number
        of nodes seen so far.
    """

    made_of: ClassVar[Mapping[str, None]] = MappingProxyType({"initial": None})

    initial: float | None = None
    round_normalization: Annotated[bool | None, _NORMALIZATION] = None
    smooth_update: Annotated[bool | None, _SMOOTH_UPDATE] = None
    bias_correction: Annotated[bool | None, _BIAS_CORRECTION] = None
    weight_scope: Annotated[WeightScope | None, _WEIGHT_SCOPE] = None
    num_clients: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError if a field is out of range."""
        super().__post_init__()
        fits = self.num_clients is None or is_count(self.num_clients, 1)
        require(fits, "num_clients", self.num_clients, "an integer >= 1")


@dataclass(frozen=True)
class FullWeighting(Weighting):
    """A Weighting without ``None``: a strategy's own default, with the values that FedIF has."""

    initial: float = 0.0
    round_normalization: RoundNormalization = True
    smooth_update: Annotated[bool, _SMOOTH_UPDATE] = True
    bias_correction: Annotated[bool, _BIAS_CORRECTION] = False
    weight_scope: Annotated[WeightScope, _WEIGHT_SCOPE] = "participants"

    def with_fields_of(self, weighting: Weighting) -> Self:
        """Return a copy with all fields of ``weighting`` that are not ``None``."""
        said = {name: value for name, value in vars(weighting).items() if value is not None}
        return replace(self, **said)


def bounds() -> list[Stage]:
    """Return the default stages: a bound on updates' lengths, and one on the validation loss."""
    return [Clip(2.0), LossBound()]


class ScoredStrategy(ScreenedStrategy):
    r"""Score a round's clients, smooth the scores over rounds, and weigh by them.

    .. math:: \Psi = \mathrm{minmax}(\Phi), \quad
              \Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma \Psi_i, \quad
              p_i = \Omega_i / \sum_{j \in S_t} \Omega_j

    with :math:`\Phi` the scores of the round's clients :math:`S_t`, :math:`\Psi` the same mapped to
    [0, 1], :math:`\Omega_i` client i's weight score and :math:`p_i` its weight.

    Parameters
    ----------
    validation : Valuation
        Gives the scores :math:`\Phi` of a round's clients. Subclasses with a valuation of their
        own, such as FedIF, also take a Validation, on which they make it.
    gamma : float
        Rate of the smooth update, in (0, 1].
    weighting : Weighting, optional
        How scores become weights. Default: :attr:`default_weighting`, which is the paper's. It also
        replaces the fields of a given Weighting that are ``None``.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    made_of = MappingProxyType({"weighting": FullWeighting})
    default_weighting: Weighting = FullWeighting()
    default_stages = staticmethod(bounds)
    ledger: ScoreLedger
    _warned_of_two = False  # Whether the log has warned of min-max in a round of two.

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
        own = FullWeighting().with_fields_of(self.default_weighting)
        self.weighting = own.with_fields_of(weighting or Weighting())
        self.ledger = ScoreLedger(
            gamma,
            initial=self.weighting.initial,
            smooth_update=self.weighting.smooth_update,
            bias_correction=self.weighting.bias_correction,
        )

    @property
    def chance(self) -> float | None:
        """The probability with which each client is drawn; ``None`` if m of K clients are drawn."""
        return None

    @property
    def scoring(self) -> Scoring:
        """How weight scores follow from a round's scores."""
        return Scoring.of(self.ledger, min_max=self.weighting.round_normalization)

    def prepare(self, params: Tensor, buffers: dict[str, Tensor]) -> None:
        """Let the valuation begin while the clients train."""
        self.valuation.prepare(params, buffers)

    def require_members(self, count: int) -> None:
        """Raise ConfigError if the valuation cannot value ``count`` members."""
        require_few_enough(self.valuation, count)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]`` of a round's clients, and the scores behind them."""
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
        """Return a round's scores ``[m]`` mapped to [0, 1], or as they are if that is off."""
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
        """Add the round's influences up; return each client's accumulative influence INF ``[m]``.

        ``None`` if the valuation's scores are no influences.
        """
        if scores.influences is None:
            return None
        warn_of_zeros(updates, scores.influences)
        return self.ledger.accumulate(updates.client_ids, scores.influences)

    def _warn_of_two(self, server_round: int, normalized: Tensor) -> None:
        """Warn once that min-max gives one of two members 0, however close their scores are."""
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
    """Warn of a round whose influences ``[m]`` are all exactly 0, so that they rank no client."""
    if bool(influences.any()):
        return
    reason = "the gradient of the validation loss is 0 along each of them"
    if not bool(updates.squared_norms.any()):
        reason = "all updates are 0"
    logger.warning(
        "round %d: the influence of all %d updates is exactly 0, since %s: this round ranks no "
        "client",
        updates.server_round,
        updates.num_clients,
        reason,
    )


def require_few_enough(valuation: Valuation, count: int) -> None:
    """Raise ConfigError if a valuation has a limit of members, and ``count`` exceeds it."""
    if hasattr(valuation, "require_members"):
        valuation.require_members(count)


def finite_scores(valuation: Valuation, updates: RoundUpdates) -> Scores:
    """Return a round's scores ``[m]`` in float64; one that is not finite becomes the least other.

    Raises
    ------
    ValuationError
        If the valuation returns no Scores, not one score for each client, or none that is finite.
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
    # A client can make its own score NaN or infinite. That must not fail the round for the others.
    return replace(scores, values=values.where(finite, values[finite].min()))


def valuation_on(
    strategy: ScreenedStrategy,
    validation: Validation | Valuation,
    value: Callable[[Validation], Valuation],
) -> Valuation:
    """Return the valuation that a strategy was given, or its own one on a validation set.

    Parameters
    ----------
    strategy : ScreenedStrategy
        The strategy, for errors.
    validation : Validation or Valuation
        The strategy's argument ``validation``.
    value : callable
        Makes the strategy's own valuation of a validation set.

    Raises
    ------
    ConfigError
        If ``validation`` is neither of the two.
    """
    require_kind(strategy, "validation", validation, Validation, Valuation)
    if isinstance(validation, Validation):
        return value(validation)
    return validation
