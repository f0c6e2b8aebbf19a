"""A screen that leaves out updates if they strengthen a trigger, which inversion finds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import clipping_factors, usual_length
from fedif_flower.combining import combine, combine_buffers
from fedif_flower.errors import ConfigError
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import Setting
from fedif_flower.stages.stage import Stage
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.validation import Validation
from fedif_studies.backdoors.inversion import Triggers, held_out_images, invert_triggers

_LONG = 3.0  # For the screen, updates are clipped to so many times their usual length.
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class TriggerScreen(Stage):
    r"""Looks for a trigger in a round's mean model, and leaves out updates that strengthen it.

    The mean model is :math:`\bar w = w_{t-1} + \sum_i p_i u_i`, with :math:`p_i` the clients'
    shares of the examples, and updates :math:`u_i` clipped to three times the median length. Its
    triggers are inverted (:func:`~fedif_studies.backdoors.inversion.invert_triggers`), and the
    smallest one is suspected. The validation images of other classes are stamped with it and keep
    their true labels: :math:`D'_\text{trigger}`. By how much an update raises the loss on them says
    whether the trigger comes from it:

    .. math:: s_i = \langle u_i, \nabla \ell(\bar w, D'_\text{trigger}) \rangle, \qquad
              \bar s = \sum_i p_i s_i

    Updates with :math:`s_i > \rho` are left out. If the smallest mask is less than the share
    ``small`` of the median mask, there certainly is a trigger, and updates with
    :math:`s_i > \max(\bar s, 0)` are left out, too. The mean of the updates that stay takes the
    place of each one that is left out, so that its weight goes to them. The update with the least
    :math:`s_i` always stays. The screen does not need a majority of honest clients.

    Parameters
    ----------
    validation : Validation, optional
        The held-out images D' with model and loss. Default: the strategy's own.
    rise : float
        :math:`\rho` >= 0, in nats.
    small : float
        The least size of a mask that is not a trigger, as a share of the median mask, >= 0.
    steps : int
        The number of steps of an inversion, >= 1.

    Raises
    ------
    ConfigError
        If a setting is out of range. When the rounds begin: if there is no validation set, or it is
        not one of images with classes.
    """

    validation: Validation | None = field(default=None, repr=False)
    rise: Annotated[
        float, Setting("rho: who raises the loss of images with the trigger by more nats", ge=0)
    ] = 2.0
    small: Annotated[
        float, Setting("a mask of less than this share of the median one is a trigger", ge=0)
    ] = 0.5
    steps: Annotated[int, Setting("of an inversion", ge=1)] = 100
    _rounds = 0  # The number of rounds in which updates were left out.
    _left_out = 0  # The number of updates that were left out in all rounds.

    def begin(self, validation: Validation | None) -> None:
        """Take the strategy's validation set, unless another one was given."""
        self.validation = self.validation or validation
        if self.validation is None:
            raise ConfigError("TriggerScreen looks at held-out images: TriggerScreen(validation)")
        self._inputs, _ = held_out_images(self.validation, type(self).__name__)
        # A copy of the model, since other threads use the validation's own in the background.
        self._model = FlatModel(self.validation.judge.model.module, self.validation.device)
        self._model.module.requires_grad_(False)

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with the mean of the others in place of updates that are left out."""
        shares = updates.num_examples / updates.num_examples.sum()  # [m], float64
        influences, mask_share = self._influences(updates.shortened(), shares)
        is_certain = mask_share < self.small
        left_out = strengthening(influences, shares, self.rise, is_certain=is_certain)
        if not bool(left_out.any()):
            return updates
        self._rounds += 1
        self._left_out += int(left_out.sum())
        ids = [updates.client_ids[index] for index in left_out.nonzero().flatten().tolist()]
        logger.debug("round %d: a trigger comes from clients %s", updates.server_round, ids)
        shares_of_others = shares * ~left_out
        # [m, m]: an update that stays is itself; one that is left out becomes the others' mean.
        mixing = torch.eye(updates.num_clients, dtype=torch.float64)
        mixing[left_out] = shares_of_others / shares_of_others.sum()
        return updates.mixed(mixing)

    def _influences(self, updates: RoundUpdates, weights: Tensor) -> tuple[Tensor, float]:
        """Return two things about the suspected trigger of the round's mean model.

        The first is by how much each update raises the loss of images with the trigger, ``[m]``.
        The second is the size of the trigger's mask as a share of the median mask.
        """
        norms = updates.squared_norms.sqrt()
        factors = clipping_factors(updates.squared_norms, _LONG * usual_length(norms))  # [m]
        weights = weights * factors
        params = combine(updates.global_params, updates.client_updates, weights)
        combined = combine_buffers(updates.global_buffers, updates.buffer_updates, weights)
        buffers = {**updates.named_buffers, **updates.split_buffers(combined)}
        self._model.load(params, buffers)
        triggers = invert_triggers(
            self._model.module,
            self._inputs,
            num_classes=self._model.module(self._inputs[:2]).shape[1],
            steps=self.steps,
            generator=updates.generator("trigger-inversion"),
        )
        label = triggers.smallest
        gradient = self._with_trigger(triggers, label).loss_and_gradient(params, buffers).gradient
        inner = updates.client_updates @ gradient.to(updates.client_updates)
        return inner.double().cpu() * factors, triggers.share_of_median(label)

    def _with_trigger(self, triggers: Triggers, label: int) -> Validation:
        """Return the validation images of other classes, stamped with the trigger of a class."""
        assert self.validation is not None  # begin() has checked this.
        stamped = []
        for batch in self.validation.batches:
            inputs, targets = batch.content
            others = targets != label
            if bool(others.any()):
                stamped.append((triggers.stamp(inputs[others], label), targets[others]))
        return self.validation.with_batches(stamped)

    def remark(self) -> str:
        """Return a remark on the rounds in which updates were left out; empty if there are none."""
        if not self._rounds:
            return ""
        return (
            f"in {self._rounds} rounds a trigger was found, and {self._left_out} updates that "
            "strengthened it were left out"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, for a run that goes on."""
        return {"rounds": self._rounds, "left_out": self._left_out}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._rounds = state["rounds"]
        self._left_out = state["left_out"]


def strengthening(influences: Tensor, shares: Tensor, rise: float, *, is_certain: bool) -> Tensor:
    r"""Return which updates are left out, ``[m]``, bool.

    .. math:: s_i > \rho, \quad \text{or, where a trigger is certain,} \quad
              s_i > \min\Big(\rho, \max\Big(\sum_j p_j s_j, 0\Big)\Big)

    The update with the least influence always stays.

    Parameters
    ----------
    influences : Tensor
        ``[m]``, float64: :math:`s_i`. If one is not finite, they cannot be compared, and no update
        is left out.
    shares : Tensor
        ``[m]``, float64: :math:`p_i`, which sum to 1.
    rise : float
        :math:`\rho` >= 0.
    is_certain : bool
        Whether there certainly is a trigger.
    """
    if not bool(influences.isfinite().all()):
        return torch.zeros(len(influences), dtype=torch.bool)
    bound = rise
    if is_certain:
        mean = float(shares @ influences)
        bound = min(rise, max(mean, 0.0))
    left_out = influences > bound
    left_out[influences.argmin()] = False
    return left_out
