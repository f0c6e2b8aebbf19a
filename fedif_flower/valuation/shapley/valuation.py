"""Shapley values of a round's clients, with the validation score as the game."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedif_flower.errors import ConfigError
from fedif_flower.round import RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.valuation.coalitions import METRICS, Metric
from fedif_flower.valuation.scores import Scores
from fedif_flower.valuation.shapley import ESTIMATORS
from fedif_flower.valuation.validation import Validation


class ShapleyValuation:
    r"""Score each client by its Shapley value in the round's game.

    .. math:: \phi_i = \sum_{C \subseteq S_t \setminus i}
              \frac{|C|! (m - |C| - 1)!}{m!} \bigl(u(C \cup i) - u(C)\bigr)

    with u(C) the score on D' of the unweighted mean of the members' models, and u(empty) that of
    the global model. The score is the accuracy, or the negative loss.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    estimator : str
        A name in :data:`~fedif_flower.valuation.shapley.ESTIMATORS`.
    num_samples : int
        The estimator's own count, >= 1 (complementary: samples per stratum).
    utility : str
        ``"accuracy"`` or ``"loss"``.
    seed : int
        Coalitions are drawn from (seed, round).
    """

    def __init__(
        self,
        validation: Validation,
        *,
        estimator: str = "complementary",
        num_samples: int = 50,
        utility: Metric = "accuracy",
        seed: int = 0,
    ) -> None:
        if estimator not in ESTIMATORS:
            raise ConfigError(
                f"shapley-estimator = {estimator!r}; allowed: {', '.join(ESTIMATORS)}"
            )
        if utility not in METRICS:
            raise ConfigError(f"shapley-utility = {utility!r}; allowed: {', '.join(METRICS)}")
        if num_samples < 1:
            raise ConfigError(f"shapley-samples = {num_samples}; allowed: >= 1")
        self.validation = validation
        self.estimator = ESTIMATORS[estimator]
        self.num_samples = num_samples
        self.utility = utility
        self.seed = seed

    @property
    def parameter_names(self) -> list[str]:
        """The trainable parameters, in the order of the vector [d]."""
        return self.validation.parameter_names

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Do nothing: coalitions can be evaluated only when the clients have trained."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Return Shapley values ``[m]`` and the number of coalitions evaluated."""
        client_params, client_buffers = updates.client_params(), updates.named_client_buffers()

        def utility(masks: Tensor) -> Tensor:  # [c, m] -> [c]
            evaluate = (
                self.validation.coalition_accuracy
                if self.utility == "accuracy"
                else self.validation.coalition_loss
            )
            scores = evaluate(
                client_params,
                masks,
                updates.global_params,
                client_buffers=client_buffers,
                global_buffers=updates.named_buffers,
            )
            return scores if self.utility == "accuracy" else -scores

        estimate = self.estimator(
            utility,
            updates.num_clients,
            num_samples=self.num_samples,
            generator=torch_generator("shapley", self.seed, updates.server_round),
        )
        return Scores(estimate.values, evaluations=estimate.evaluations)
