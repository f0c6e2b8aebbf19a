"""FedNoRo [Wu et al., 2023]: finds clients with wrong labels; they learn from the global model.

Paper: https://arxiv.org/abs/2305.05230
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.aggregators.linear_algebra import pairwise_squared_distances
from fedif_flower.constructors import CheckedFields
from fedif_flower.local_methods import Guide, Instructions, LocalMethod, LocalRound, LocalTerm, Turn
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import Setting
from fedif_flower.tasks.modules import copy_module, module_mode
from fedif_flower.tasks.task import Data, Task
from fedif_studies.local_methods.classifier import classifier_misfit, labelled_batches
from fedif_studies.local_methods.mixture import noisy_of

CLASS_LOSSES = "class-losses"
_NONE = -1.0  # In a report, the loss of a class of which the client has no example.
# Keys of what the server tells a client: whether to report its losses, and lambda.
_REPORT = "report"
_DISTILLATION = "distillation"


@dataclass(frozen=True)
class FedNoRo(CheckedFields, LocalMethod):
    r"""Members with wrong labels, found by their losses per class, learn from the global model.

    With z the outputs of the client's model, y the labels, :math:`\pi` the shares of the classes
    among the client's labels, T the temperature and :math:`z_g` the outputs of the received model,
    a client's loss is

    .. math::
        (1 - \lambda) \operatorname{CE}(z + \log \pi, y) +
        \lambda \operatorname{KL}(\operatorname{softmax}(z_g / T) \,\|\,
        \operatorname{softmax}(z + \log \pi))

    :math:`\lambda` is 0 for clean members, and for all in the warm-up; for members found noisy, it
    is :func:`distillation_weight`. Noisy members' weights in the step fall with their distance from
    clean members (:func:`distance_aware`).

    Parameters
    ----------
    warm_up : int
        The number of rounds of the first stage, >= 2. Its last round asks all members.
    distillation : float
        The largest :math:`\lambda`, in [0, 1].
    ramp : int
        The number of rounds of the second stage until :math:`\lambda` is the largest, >= 1.
    temperature : float
        T > 0.
    distance_aware : bool
        Whether noisy members' weights fall with their distance from clean ones.
    num_classes : int
        C >= 2; in a run config, the task sets it.
    seed : int
        The seed of the Gaussian mixtures.
    """

    warm_up: Annotated[
        int, Setting("rounds of the first stage; in its last all members are asked", ge=2)
    ] = 10
    distillation: Annotated[
        float, Setting("largest share of the distillation in noisy members' loss", ge=0, le=1)
    ] = 0.8
    ramp: Annotated[int, Setting("rounds of the second stage until it is reached", ge=1)] = 40
    temperature: Annotated[float, Setting("T of the global model's answers", gt=0)] = 0.8
    distance_aware: Annotated[
        bool, Setting("noisy members' weights fall with their distance from clean ones")
    ] = True
    num_classes: int = 0
    seed: int = 0

    def misfit(self, task: Task, data: Data) -> str:
        """Return what a task lacks: it has to be a classifier."""
        return super().misfit(task, data) or classifier_misfit(task, data)

    def guide(self) -> Guide:
        """Return the server's half, which finds noisy members."""
        return FedNoRoGuide(self)

    def term(self, local: LocalRound) -> LocalTerm:
        """Return the loss of this round, and report the losses per class if the server asks."""
        term = _AdjustedLoss(self, local)
        if local.instructions.get(_REPORT):
            losses = class_losses(local.model, _batches(local), self.num_classes)
            term.report[CLASS_LOSSES] = losses.nan_to_num(_NONE)
        return term


class FedNoRoGuide(Guide):
    """Splits the members once, after the warm-up, and tells each how much distillation counts."""

    def __init__(self, method: FedNoRo) -> None:
        super().__init__()
        self._method = method
        self._split_after: int | None = None  # The round whose reports have split the members.
        self.weighs = method.distance_aware

    def choose_members(self, members: Sequence[int], server_round: int) -> Turn:
        """Return all members, and that the round asks all of them if it measures losses."""
        return Turn(members, everyone=self._measures(server_round))

    def instruct(self, client_id: int, server_round: int) -> Instructions:
        """Return whether to report losses, and how much the distillation counts (lambda)."""
        weight = 0.0
        if self._split_after is not None and client_id in self.noisy:
            since = server_round - self._split_after
            weight = distillation_weight(since, self._method.ramp, self._method.distillation)
        return {_REPORT: self._measures(server_round), _DISTILLATION: weight}

    def report_lengths(self, server_round: int) -> Mapping[str, int]:
        """Return that replies have to report C losses in the round that measures them."""
        if not self._measures(server_round):
            return {}
        return {CLASS_LOSSES: self._method.num_classes}

    def take(
        self, server_round: int, client_ids: Sequence[int], reports: Mapping[str, Tensor]
    ) -> None:
        """Split the members by their losses, if two or more have reported these."""
        if not self._measures(server_round) or len(client_ids) < 2:
            return
        losses = reports[CLASS_LOSSES].double()
        losses = torch.where(losses < 0, torch.nan, losses)
        self.noisy = noisy_of(client_ids, losses, self._method.seed, classes=losses.shape[1])
        self._split_after = server_round

    def reweigh(self, updates: RoundUpdates, weights: Tensor) -> Tensor:
        """Return weights that fall with the distance of noisy members from clean ones."""
        noisy = torch.tensor([i in self.noisy for i in updates.client_ids])
        if not self.weighs or not bool(noisy.any()) or bool(noisy.all()):
            return weights
        return distance_aware(weights, updates.client_updates, noisy)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps: noisy members, and the round of the split."""
        return super().state_dict() | {"split_after": self._split_after}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._split_after = state["split_after"]

    def _measures(self, server_round: int) -> bool:
        return self._split_after is None and server_round >= self._method.warm_up


class _AdjustedLoss(LocalTerm):
    """Cross-entropy of outputs adjusted by the client's class shares, plus the distillation."""

    def __init__(self, method: FedNoRo, local: LocalRound) -> None:
        super().__init__()
        shares = class_shares(_batches(local), method.num_classes)
        self._log_shares = shares.log().to(local.received)  # [C]
        self._weight = float(local.instructions.get(_DISTILLATION, 0.0))
        self._temperature = method.temperature
        self._model = local.model
        self._teacher = copy_module(local.model).eval().requires_grad_(False)
        self._answers: Tensor | None = None
        self._handles: list[Any] = []
        self.loss_fn = self._loss

    def __enter__(self) -> _AdjustedLoss:
        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with torch.no_grad():
                self._answers = self._teacher(*args, **kwargs)

        if self._weight:
            self._handles = [self._model.register_forward_pre_hook(note, with_kwargs=True)]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        adjusted = outputs + self._log_shares
        loss = functional.cross_entropy(adjusted, labels)
        if not self._weight:
            return loss
        assert self._answers is not None  # The model has just been called, and the hook with it.
        distilled = distillation_loss(adjusted, self._answers / self._temperature)
        return (1 - self._weight) * loss + self._weight * distilled


def class_shares(batches: Iterable[Any], num_classes: int) -> Tensor:
    r"""Return :math:`\pi`: the share of each class among a client's labels, ``[C]``, float64."""
    counts = torch.zeros(num_classes, dtype=torch.float64)
    for *_, labels in batches:
        counts += torch.bincount(labels.cpu(), minlength=num_classes)
    return counts / counts.sum()


@torch.no_grad()
def class_losses(model: nn.Module, batches: Iterable[Any], num_classes: int) -> Tensor:
    """Return the mean cross-entropy of each class's examples, ``[C]``, float64; NaN without any."""
    sums = torch.zeros(num_classes, dtype=torch.float64)
    counts = torch.zeros_like(sums)
    with module_mode(model, training=False):
        for *inputs, labels in batches:
            losses = functional.cross_entropy(model(*inputs), labels, reduction="none")
            sums.index_add_(0, labels.cpu(), losses.cpu().double())
            counts += torch.bincount(labels.cpu(), minlength=num_classes)
    return sums / counts


def distillation_loss(outputs: Tensor, answers: Tensor) -> Tensor:
    r"""Return the batch mean of :math:`\operatorname{KL}(q \| p)` over the client's classes.

    Parameters
    ----------
    outputs : Tensor
        ``[n, C]``: p is their softmax. They are :math:`-\infty` for a class of which the client has
        no example; such a class gives no gradient.
    answers : Tensor
        ``[n, C]``: q is their softmax.
    """
    log_p = functional.log_softmax(outputs, dim=1)
    log_p = torch.where(log_p.isinf(), 0.0, log_p)
    return functional.kl_div(log_p, functional.softmax(answers, dim=1), reduction="batchmean")


def distillation_weight(since: int, ramp: int, largest: float) -> float:
    r"""Return :math:`\lambda` in a round of the second stage.

    .. math:: \lambda = \lambda_{max} \, e^{-5 (1 - x)^2}, \qquad
              x = \min(1, (s - 1) / (r - 1))

    Parameters
    ----------
    since : int
        s >= 1: the number of the round in the second stage.
    ramp : int
        r >= 1: from this round of the stage on, :math:`\lambda` is the largest.
    largest : float
        :math:`\lambda_{max}`.
    """
    if since >= ramp:
        return largest
    ramped = (since - 1) / (ramp - 1)
    return largest * math.exp(-5 * (1 - ramped) ** 2)


def distance_aware(weights: Tensor, updates: Tensor, noisy: Tensor) -> Tensor:
    r"""Return weights that fall with noisy clients' distance from the nearest clean one.

    .. math:: p_i' \propto p_i \, e^{-D_i}, \qquad
              D_i = \frac{d_i}{\max_j d_j}, \qquad
              d_i = \min_{j \text{ clean}} \lVert w_i - w_j \rVert \text{ or, if clean, } 0

    The new weights have the same sum as the old ones.

    Parameters
    ----------
    weights : Tensor
        ``[m]``: the weights :math:`p_i`.
    updates : Tensor
        ``[m, d]``, finite: the updates, whose distances are those of the models :math:`w_i`.
    noisy : Tensor
        ``[m]``, bool: whether a client is noisy; some are, and not all.
    """
    between = pairwise_squared_distances(updates).cpu().sqrt()  # [m, m]
    distances = torch.where(noisy, between[:, ~noisy].amin(dim=1), 0.0)  # [m]
    farthest = distances.max()
    lowered = weights.double().cpu()
    if farthest > 0:
        lowered = lowered * torch.exp(-distances / farthest)
    total = lowered.sum()
    if not total > 0:
        return weights
    return lowered * (weights.double().cpu().sum() / total)


def _batches(local: LocalRound) -> Iterator[Any]:
    return labelled_batches(local.data, local.received.device)
