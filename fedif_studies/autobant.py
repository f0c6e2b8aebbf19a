"""AutoBANT: a published strategy that descends the loss on the server's trial examples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Unpack

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import inner_products
from fedif_flower.combining import combine, combine_buffers
from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ValuationError
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import BaseArguments, require_kind, with_names_of
from fedif_flower.settings import Setting
from fedif_flower.strategies.scored import bounds
from fedif_flower.valuation import Validation
from fedif_flower.valuation.descent import LossGradient


def auto_bant_weights(
    global_params: Tensor,
    client_updates: Tensor,
    batches: Iterable[LossGradient],
    *,
    step_size: float = 1.0,
    momentum: float = 0.05,
    least: float = 0.5,
) -> Tensor:
    r"""Return the weights, among those of all mirror steps, with the least loss on their batch.

    .. math:: q_i \propto p_i e^{-\eta \langle u_i, g \rangle}, \qquad
              p \leftarrow (1 - \beta) p + \beta q, \qquad
              g = \nabla \ell_b\Big(w_{t-1} + \sum_i p_i u_i\Big)

    The steps begin at :math:`p_i = 1 / m`; there is one for each batch b of trial data, with
    :math:`\ell_b` the loss on it and :math:`u_i` client i's update. The p at which a batch had the
    least loss are the weights; those less than :math:`c / m` become 0.

    Parameters
    ----------
    global_params : Tensor
        ``[d]``: :math:`w_{t-1}`.
    client_updates : Tensor
        ``[m, d]``: :math:`u_i`, m >= 1.
    batches : iterable of callable
        For each step, ``(params [d], weights [m])`` -> loss and gradient ``[d]`` on a batch.
    step_size : float
        :math:`\eta` > 0, in units of one over the loss.
    momentum : float
        :math:`\beta` in (0, 1].
    least : float
        c in [0, 1]: the least weight that is kept, as a multiple of the equal weight.

    Returns
    -------
    Tensor
        ``[m]``, float64, >= 0; their sum is 1 less the weights that became 0.

    Raises
    ------
    ValuationError
        If no batch has a finite loss, or a gradient is not finite.

    References
    ----------
    Molodtsov et al., "Bant: Byzantine Antidote via Trial Function and Trust Scores",
    arXiv:2505.07614, AutoBANT, with the constants of its authors' code.
    """
    m = len(client_updates)
    weights = torch.full((m,), 1.0 / m, dtype=torch.float64)
    best = weights
    least_loss = math.inf
    for loss_gradient in batches:
        params = combine(global_params, client_updates, weights)
        loss, gradient = loss_gradient(params, weights)
        if not bool(gradient.isfinite().all()):
            raise ValuationError("a gradient of the trial loss is not finite")
        if loss < least_loss:
            best = weights
            least_loss = loss
        slopes = inner_products(client_updates, gradient.to(client_updates.device)).inner.cpu()
        stepped = (weights.log() - step_size * slopes).softmax(0)  # [m]
        weights = (1 - momentum) * weights + momentum * stepped
    if not math.isfinite(least_loss):
        raise ValuationError("the trial loss is finite at none of the weights")
    return torch.where(best < least / m, 0.0, best)


@dataclass(frozen=True)
class TrialSettings(CheckedFields):
    """How AutoBANT descends the trial loss; the defaults are those of its authors' code.

    Parameters
    ----------
    examples : int
        The number of trial examples, >= 0. They are drawn once for the run, of each class in
        proportion to its share of D'. With 0, all of D' are trial examples.
    batch : int
        The number of trial examples in a step's batch, >= 1, drawn anew for each step.
    steps : int
        The number of mirror steps in a round, >= 1.
    step_size, momentum, least : float
        As in :func:`auto_bant_weights`.
    """

    examples: Annotated[
        int, Setting("trial examples, drawn once, stratified by class; 0: all", ge=0)
    ] = 500
    batch: Annotated[int, Setting("how many of them a step looks at, drawn anew", ge=1)] = 32
    steps: Annotated[int, Setting("mirror steps in a round", ge=1)] = 80
    step_size: Annotated[float, Setting("eta: how far a mirror step leads", gt=0)] = 1.0
    momentum: Annotated[
        float, Setting("beta: what a mirror step counts for in the weights", gt=0, le=1)
    ] = 0.05
    least: Annotated[float, Setting("weights below so many equal shares become 0", ge=0, le=1)] = (
        0.5
    )


DEFAULT_TRIAL = TrialSettings()


class AutoBant(ScreenedStrategy):
    """Choose a round's weights by mirror steps on trial batches.

    :func:`auto_bant_weights` has the formula. Weights depend neither on the numbers of examples nor
    on earlier rounds. The weights are the round's scores, too.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    trial : TrialSettings
        The trial examples, and the steps on them.
    **base
        See :class:`~fedif_flower.server.loop.ScreenedStrategy`. By default, lengths of updates and
        the loss after a step are bounded as for influence descent, which the paper does not do.

    References
    ----------
    Molodtsov et al., arXiv:2505.07614.
    """

    validation: Validation
    default_stages = staticmethod(bounds)
    made_of: ClassVar[Mapping[str, Any]] = MappingProxyType({"trial": TrialSettings})

    def __init__(
        self,
        validation: Validation,
        *,
        trial: TrialSettings = DEFAULT_TRIAL,
        **base: Unpack[BaseArguments],
    ) -> None:
        require_kind(self, "validation", validation, Validation)
        super().__init__(**with_names_of(validation, base))
        self.validation = validation
        self.trial = trial

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]`` of :func:`auto_bant_weights`."""
        shortened = updates.shortened()
        weights = auto_bant_weights(
            updates.global_params,
            shortened.client_updates,
            self._batches(shortened),
            step_size=self.trial.step_size,
            momentum=self.trial.momentum,
            least=self.trial.least,
        )
        return Aggregation(weights=weights, scores=weights, evaluations=self.trial.steps)

    @cached_property
    def _trial_data(self) -> Validation:
        if not self.trial.examples:
            return self.validation
        generator = torch_generator("auto-bant-trial", self.seed)
        return self.validation.sample(self.trial.examples, generator)

    def _batches(self, updates: RoundUpdates) -> Iterator[LossGradient]:
        """Yield a function for each step that gives loss and gradient on a batch of its own."""
        generator = updates.generator("auto-bant")
        for _ in range(self.trial.steps):
            batch = self._trial_data.sample(self.trial.batch, generator)
            yield partial(_loss_gradient, updates, batch)


def _loss_gradient(
    updates: RoundUpdates, batch: Validation, params: Tensor, weights: Tensor
) -> tuple[float, Tensor]:
    """Return a batch's loss and gradient ``[d]`` at ``params``, with buffers by ``weights`` [m]."""
    combined = combine_buffers(updates.global_buffers, updates.buffer_updates, weights)
    buffers = {**updates.named_buffers, **updates.split_buffers(combined)}
    return batch.loss_and_gradient(params, buffers)
