"""A round's game, in which a coalition is worth what its mean model is, and its Shapley values."""

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

# How many roundings of the largest utility a Shapley value may be off. A utility is a mean over
# examples, and a Shapley value is a weighted mean of differences of utilities: pairwise sums of up
# to 2**20 terms err by less.
_ROUNDINGS = 16

# What a coalition without a finite metric is worth. Sums of many such values are finite in float64.
_WORST = -torch.finfo(torch.float32).max

# Bytes for the coalition models of one matrix product, and for the threads' replicas of the model.
MEMORY_BUDGET = 256 * 2**20

# Blocks of coalitions per thread: with fewer, threads would wait longer for the last block.
_BLOCKS = 16


def coalition_means(client_values: Tensor, masks: Tensor, global_values: Tensor) -> Tensor:
    """Return the unweighted mean of each coalition's members.

    Parameters
    ----------
    client_values : Tensor
        ``[m, ...]``: parameters or buffers of the m clients.
    masks : Tensor
        ``[c, m]``, bool: the members of c coalitions.
    global_values : Tensor
        ``[...]``: what the empty coalition has in place of a mean.

    Returns
    -------
    Tensor
        ``[c, ...]``.
    """
    members = masks.to(client_values)  # [c, m]
    size = members.sum(dim=1, keepdim=True)  # [c, 1]
    weights = members / size.clamp_min(1)
    means: Tensor = torch.tensordot(weights, client_values, dims=1)  # [c, ...]
    means[size[:, 0] == 0] = global_values
    return means


class RoundGame:
    r"""The utility of a coalition: the metric of the unweighted mean of its members' models.

    .. math:: u(C) = \mathrm{acc}\Bigl(\tfrac{1}{|C|} \sum_{i \in C} w_i\Bigr),
              \qquad u(\emptyset) = \mathrm{acc}(w_{t-1})

    with :math:`w_i` client i's model, :math:`w_{t-1}` the global model that they received, and acc
    the accuracy on the validation set; the score or the negative loss may take its place.
    Floating-point buffers are averaged like the parameters. One client can make the loss of every
    mean that it is part of infinite or NaN: such a coalition is worth least of all. If no coalition
    so far has a finite worth, the worths stay NaN or infinite.

    Parameters
    ----------
    validation : Validation
        The held-out set with model and loss.
    updates : RoundUpdates
        The round.
    metric : {"accuracy", "loss", "score"}
        What a mean model is judged by. A metric that is not defined on the validation set is NaN.
    memory_budget : int
        How many bytes coalition models and the threads' replicas of the model may take at a time,
        > 0. At least one coalition model is formed.

    Attributes
    ----------
    largest : float
        The largest absolute value of a worth so far.
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
        """Return the worths ``[c]`` of coalitions ``[c, m]`` (bool), in float64 on the CPU."""
        worths = self._worths_of(masks)
        if self._has_finite_worth(worths):
            worths = worths.where(worths.isfinite(), _WORST)
        self.largest = max(self.largest, float(worths.abs().max()))
        return worths

    def _has_finite_worth(self, worths: Tensor) -> bool:
        """Tell whether some model of the round has a finite worth: one of these, or an earlier one.

        If none has, the global model decides: a few clients can make the loss of every coalition
        infinite that some estimators look at. Where the global model itself has diverged, the
        worths stay as they are, and CoalitionMemo raises.
        """
        if self.largest or bool(worths.isfinite().any()):
            return True
        nobody = torch.zeros(1, len(self._params), dtype=torch.bool)
        return bool(self._worths_of(nobody).isfinite())

    def _worths_of(self, masks: Tensor) -> Tensor:
        """Return the worths ``[c]`` as they are measured: some may be NaN or infinite."""
        # Each thread needs room for two models: its replica, and a coalition model to evaluate.
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
            return -worths
        return worths

    def _score(self, judge: Judge, masks: Tensor) -> Tensor:
        """Return the metric of each of some coalitions ``[rows, m]``: ``[rows]``."""
        mean_params = coalition_means(self._params, masks, self._updates.global_params)  # [rows, d]
        global_buffers = self._updates.named_buffers
        mean_buffers = {}
        for name, client_buffers in self._buffers.items():
            mean_buffers[name] = coalition_means(client_buffers, masks, global_buffers[name])
        scores = []
        for row, params in enumerate(mean_params):
            # Arrays that are not averaged, such as counters and masks, are the global model's.
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

    with :math:`S_t` the m clients of round t, and u(C) the worth of coalition C: the accuracy, the
    negative loss or the user's score of the unweighted mean of its members' models on the held-out
    set D'. The empty coalition has the worth of the global model.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    estimator : str
        A name in :data:`~fedif_flower.valuation.shapley.ESTIMATORS`.
    num_samples : int
        How much the estimator draws, >= 1, in its own unit (complementary: samples per stratum).
    utility : {"accuracy", "loss", "score"}
        What a coalition's mean model is judged by.
    seed : int
        The draws of coalitions depend on it and on the round.

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
        """Raise ConfigError for a setting out of range, or a utility that is not defined."""
        super().__post_init__()
        defined = sorted(self.validation.metrics.intersection(METRICS))
        words = f"{' or '.join(defined)} with this validation set"
        if "score" not in defined:
            words += " (score: Validation(score=...), or a metric of the task)"
        require(self.utility in defined, "utility", self.utility, words)

    def require_members(self, count: int) -> None:
        """Raise ConfigError if ``count`` members have too many coalitions to evaluate them all."""
        if self.estimator != "exact":
            return
        words = f"another one: a round has {count} members, and exact is for {MAX_CLIENTS} at most"
        require(count <= MAX_CLIENTS, "estimator", self.estimator, words)

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Do nothing: coalitions can be evaluated only when the clients have trained."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Return Shapley values ``[m]`` and the number of coalitions evaluated.

        The scores' resolution is what rounding or sampling alone may put between equal clients
        (see :attr:`~fedif_flower.valuation.shapley.Estimate.resolution`).
        """
        game = RoundGame(self.validation, updates, self.utility)
        memo = CoalitionMemo(game)
        estimate = ESTIMATORS[self.estimator](
            memo,
            updates.num_clients,
            num_samples=self.num_samples,
            generator=torch_generator("shapley", self.seed, updates.server_round),
        )
        # An accuracy is a count of right answers, so it is exact but for its rounding in float64;
        # losses and scores are as exact as the model's dtype.
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
