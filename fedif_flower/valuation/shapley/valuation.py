"""The game of a round, what the mean model of some clients is worth, and its Shapley values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import require
from fedif_flower.round import RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Setting
from fedif_flower.valuation.ledger import Scores
from fedif_flower.valuation.objective import METRICS, Metric
from fedif_flower.valuation.parallel import Judge
from fedif_flower.valuation.shapley import ESTIMATORS, CoalitionMemo
from fedif_flower.valuation.shapley.exact import MAX_CLIENTS
from fedif_flower.valuation.validation import Validation

Estimator = Annotated[str, Setting("how Shapley values are estimated", choices=ESTIMATORS)]

# Utilities are means over examples, and Shapley values weighted means of differences of utilities:
# pairwise sums of up to 2**20 terms err by less, in units of the largest utility.
_ROUNDINGS = 16

_WORST = -torch.finfo(torch.float32).max  # Sums of many such values are finite in float64.

# Coalition models formed by one matrix product take no more than this.
MEMORY_BUDGET = 256 * 2**20

# Blocks of coalitions per thread: with fewer, threads would wait longer for the last one.
_BLOCKS = 16


def coalition_means(client_values: Tensor, masks: Tensor, global_values: Tensor) -> Tensor:
    """Return the unweighted mean of each coalition's members.

    Parameters
    ----------
    client_values : Tensor
        ``[m, ...]``.
    masks : Tensor
        ``[c, m]``, bool.
    global_values : Tensor
        ``[...]``: what the empty coalition has.

    Returns
    -------
    Tensor
        ``[c, ...]``.
    """
    members = masks.to(client_values)  # [c, m]
    size = members.sum(dim=1, keepdim=True)  # [c, 1]
    shares = members / size.clamp_min(1)
    means: Tensor = torch.tensordot(shares, client_values, dims=1)  # [c, ...]
    means[size[:, 0] == 0] = global_values
    return means


class RoundGame:
    r"""What the unweighted mean of each coalition's models is worth.

    .. math:: u(C) = \mathrm{acc}\Bigl(\tfrac{1}{|C|} \sum_{i \in C} w_i\Bigr),
              \qquad u(\emptyset) = \mathrm{acc}(w_{t-1})

    with acc the accuracy on the validation set, another metric of it, or its negative loss.
    Floating-point buffers are averaged like the parameters. What is not finite, as one client can
    make the loss of a mean, is worth least of all.

    Parameters
    ----------
    validation : Validation
        The held-out set with model and loss.
    updates : RoundUpdates
        The round.
    metric : {"accuracy", "loss", "score"}
        Whose mean over the examples is taken; NaN where it is not defined.
    memory_budget : int
        Bytes that coalition models and the threads' replicas of the model may take at a time,
        > 0; at least one coalition model is formed.

    Attributes
    ----------
    largest : float
        The size of the largest worth so far.
    """

    def __init__(
        self,
        validation: Validation,
        updates: RoundUpdates,
        metric: Metric,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        self._validation = validation
        self._updates = updates
        self._metric = metric
        self._params = updates.client_params()  # [m, d]
        self._buffers = updates.named_client_buffers()  # [m, ...] each
        self._affordable = memory_budget // (self._params[0].numel() * self._params.itemsize)
        self.largest = 0.0

    def __call__(self, masks: Tensor) -> Tensor:
        """Return the worths ``[c]``, float64, on the CPU, of coalitions ``[c, m]``, bool."""
        # Each replica is a model of its own beside the coalition models that it evaluates.
        at_most = self._affordable // 2
        with self._validation.side_by_side(self._metric, at_most) as pool:
            if pool:
                threads = len(pool.judges)
                rows_at_once = self._affordable // threads - 1
            else:
                threads = 1
                rows_at_once = self._affordable
            needed = math.ceil(len(masks) / max(rows_at_once, 1))
            blocks = max(needed, _BLOCKS * threads)
            parts = masks.to(self._params.device).tensor_split(min(blocks, len(masks)))
            if pool:
                scores_by_part = pool.map(self._score, parts)
            else:
                with self._validation.alone() as judge:
                    scores_by_part = [self._score(judge, part) for part in parts]
        worths = torch.cat(scores_by_part).cpu().double()
        if self._metric == "loss":
            worths = -worths
        if self.largest or bool(worths.isfinite().any()):  # Else the global model has diverged.
            worths = worths.where(worths.isfinite(), _WORST)
        self.largest = max(self.largest, float(worths.abs().max()))
        return worths

    def _score(self, judge: Judge, masks: Tensor) -> Tensor:
        """Return the metric of some coalitions ``[rows, m]``, ``[rows]``."""
        mean_params = coalition_means(self._params, masks, self._updates.global_params)  # [rows, d]
        global_buffers = self._updates.named_buffers
        mean_buffers = {}
        for name, client_buffers in self._buffers.items():
            mean_buffers[name] = coalition_means(client_buffers, masks, global_buffers[name])
        scores = []
        for row, params in enumerate(mean_params):
            # What is not averaged, as counters and masks, is the global model's.
            buffers = dict(global_buffers)
            for name, means in mean_buffers.items():
                buffers[name] = means[row]
            scores.append(self._validation.mean_by(judge, params, buffers, self._metric))
        return torch.cat(scores)


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
            "complementary: samples per stratum; permutation: orders, each with its reverse; gtg: "
            "most orders; owen: antithetic pairs",
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
        words = f"{' or '.join(defined)} with this validation set"
        if "score" not in defined:
            words += " (score: Validation(score=...), or a metric of the task)"
        require(self.utility in defined, "utility", self.utility, words)

    def require_members(self, count: int) -> None:
        """Raise ConfigError where a round of so many members has too many coalitions for all."""
        if self.estimator != "exact":
            return
        words = f"another one: a round has {count} members, and exact is for {MAX_CLIENTS} at most"
        require(count <= MAX_CLIENTS, "estimator", self.estimator, words)

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Do nothing: coalitions can be evaluated only when the clients have trained."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Return Shapley values ``[m]`` and the number of coalitions evaluated.

        What chance alone may put between equal clients is no difference (see
        :attr:`~fedif_flower.valuation.shapley.Estimate.resolution`).
        """
        game = RoundGame(self.validation, updates, self.utility)
        memo = CoalitionMemo(game)
        estimate = ESTIMATORS[self.estimator](
            memo,
            updates.num_clients,
            num_samples=self.num_samples,
            generator=torch_generator("shapley", self.seed, updates.server_round),
        )
        # Shares of right answers are counted; losses and scores are as exact as the model.
        exact = torch.float64 if self.utility == "accuracy" else updates.global_params.dtype
        rounding = _ROUNDINGS * torch.finfo(exact).eps * game.largest
        return Scores(
            estimate.values,
            evaluations=memo.evaluations,
            resolution=max(rounding, estimate.resolution),
        )


@dataclass(eq=False, repr=False, kw_only=True)
class SampledOrders(ShapleyValuation):
    """Shapley values over sampled orders of the clients, as FedSV and S-FedAvg estimate them."""

    estimator: Estimator = "permutation"
