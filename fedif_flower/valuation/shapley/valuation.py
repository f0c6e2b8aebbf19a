"""Shapley values of a round's clients, with the validation score as the game."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.errors import require
from fedif_flower.round import RoundUpdates
from fedif_flower.sections import CheckedFields
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Setting
from fedif_flower.valuation.coalitions import RoundGame
from fedif_flower.valuation.objective import METRICS, Metric
from fedif_flower.valuation.scores import Scores
from fedif_flower.valuation.shapley import ESTIMATORS, CoalitionMemo
from fedif_flower.valuation.validation import Validation

Estimator = Annotated[str, Setting("how Shapley values are estimated", choices=ESTIMATORS)]

# Utilities are means over examples, their values weighted means of differences of these: pairwise
# sums of up to 2**20 terms err by less, in units of the largest utility.
_ROUNDINGS = 16


@dataclass(eq=False, repr=False)
class ShapleyValuation(CheckedFields):
    r"""Score each client by its Shapley value in the round's game.

    .. math:: \phi_i = \sum_{C \subseteq S_t \setminus i}
              \frac{|C|! (m - |C| - 1)!}{m!} \bigl(u(C \cup i) - u(C)\bigr)

    with u(C) the score on D' of the unweighted mean of the members' models, and u(empty) that of
    the global model. The score is the accuracy, the negative loss, or the validation's own score.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    estimator : str
        A name in :data:`~fedif_flower.valuation.shapley.ESTIMATORS`.
    num_samples : int
        The estimator's own count, >= 1 (complementary: samples per stratum).
    utility : {"accuracy", "loss", "score"}
        What the validation set says of a model.
    seed : int
        Coalitions are drawn from (seed, round).

    Raises
    ------
    ConfigError
        If an argument is not allowed, or the utility is not defined on this validation set.
    """

    validation: Validation
    _: KW_ONLY
    estimator: Estimator = "complementary"
    num_samples: Annotated[
        int,
        Setting(
            "complementary: samples per stratum; permutation: orders; gtg: most orders; owen: "
            "antithetic pairs",
            ge=1,
        ),
    ] = 50
    utility: Annotated[
        Metric,
        Setting("what a coalition is worth; `score`: the first metric of a task of your own"),
    ] = "accuracy"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for what is out of range, or not defined on the validation set."""
        super().__post_init__()
        defined = sorted(self.validation.metrics.intersection(METRICS))
        words = f"{' or '.join(defined)} with this validation set (score: Validation(score=...))"
        require(self.utility in defined, "utility", self.utility, words)

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Do nothing: coalitions can be evaluated only when the clients have trained."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Return Shapley values ``[m]`` and the number of coalitions evaluated."""
        game = RoundGame(self.validation, updates, self.utility)
        memo = CoalitionMemo(game)
        values = ESTIMATORS[self.estimator](
            memo,
            updates.num_clients,
            num_samples=self.num_samples,
            generator=torch_generator("shapley", self.seed, updates.server_round),
        )
        # Shares of right answers are counted; losses and scores are as exact as the model.
        exact = torch.float64 if self.utility == "accuracy" else self.validation.dtype
        return Scores(
            values,
            evaluations=memo.evaluations,
            resolution=_ROUNDINGS * torch.finfo(exact).eps * game.largest,
        )


@dataclass(eq=False, repr=False, kw_only=True)
class SampledOrders(ShapleyValuation):
    """Shapley values over sampled orders of the clients, as FedSV and S-FedAvg estimate them."""

    estimator: Estimator = "permutation"
