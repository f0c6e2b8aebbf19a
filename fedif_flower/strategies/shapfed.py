"""ShapFed [Tastan et al., 2024]: weights from class-wise agreement with the aggregate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Unpack

import torch
from torch import Tensor, nn

from fedif_flower.round import RoundUpdates
from fedif_flower.server.setup import BaseArguments, require_kind
from fedif_flower.stages import Clip, Stage
from fedif_flower.strategies.scored import FullWeighting, RoundNormalization, ScoredStrategy
from fedif_flower.tasks.modules import array_shapes, output_layer, tied_names, trainable_names
from fedif_flower.valuation.ledger import Gamma, Scores
from fedif_flower.valuation.shapfed import shapfed_contributions


class ShapFedValuation:
    """Agreement of each client's last layer with the aggregate's, class by class.

    Parameters
    ----------
    model : torch.nn.Module
        Tells where the last layer lies: its last trainable parameter of two dimensions,
        ``[classes, features]``. That is the one that is registered last: a module defines its head
        after its body.
    """

    validation = None  # There is no validation set: steps are bounded by their lengths alone.

    def __init__(self, model: nn.Module) -> None:
        self.parameter_names = trainable_names(model)
        self.tied_names = tied_names(model)
        self._layer = output_layer(model, "ShapFed")

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Do nothing: there is no validation set to look at."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Return mean cosines ``[m]``, in [-1, 1]."""
        layer = updates.client_updates[:, self._layer.weight].view(-1, *self._layer.shape)
        # In the aggregate an update is as long as stages let it be: one that is far longer than
        # the others would else be what all are compared with.
        weights = updates.num_examples * updates.shortening
        values = shapfed_contributions(layer, weights.to(layer.device))
        # In float64: of rounding there is that of the updates themselves.
        return Scores(values.cpu(), resolution=4 * torch.finfo(layer.dtype).eps)


@dataclass(frozen=True)
class CosineWeighting(FullWeighting):
    """How cosines become weights: as they are, since they have a scale of their own."""

    round_normalization: RoundNormalization = False


class ShapFed(ScoredStrategy):
    """ShapFed: weigh by smoothed class-wise agreement; negative agreement counts as 0.

    Paper: Tastan et al., *Redefining Contributions: Shapley-Driven Federated Learning*, 2024.

    Its authors' code differs: it joins each class's bias to its row and compares models, not
    updates; the aggregate that clients are compared with has the weights of the round before (the
    first round's are equal), where here it has the shares of examples, of updates that stages have
    shortened; a client's first value is taken whole, where here weight scores start at 0; it keeps
    0.95 of the old value, and sends every client a model of its own, here all receive the same one.

    Parameters
    ----------
    model : torch.nn.Module
        See :class:`ShapFedValuation`.
    gamma : float
        Rate of the smooth update, in (0, 1].
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    made_of = MappingProxyType({"weighting": CosineWeighting})
    default_weighting = CosineWeighting()

    def __init__(
        self, model: nn.Module, *, gamma: Gamma = 0.5, **base: Unpack[BaseArguments]
    ) -> None:
        require_kind(self, "model", model, nn.Module)
        super().__init__(ShapFedValuation(model), gamma=gamma, **base)
        self._own_shapes = array_shapes(model)

    @classmethod
    def default_stages(cls) -> list[Stage]:
        """Return a bound on lengths: there is no validation set."""
        return [Clip(2.0)]

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the model that tells where the last layer lies."""
        return self._own_shapes
