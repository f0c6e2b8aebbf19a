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
    """Scores each client by how well its last layer's update agrees with the aggregate's.

    The agreement is the cosine of the two for each class, averaged over the classes. Formula:
    :func:`~fedif_flower.valuation.shapfed.shapfed_contributions`.

    Parameters
    ----------
    model : torch.nn.Module
        A copy of the model that is trained. The last layer is its last trainable parameter of two
        dimensions, ``[classes, features]``, in the order of registration: a module defines its head
        after its body.
    """

    validation = None  # There is no validation set, so that no stage can bound the loss.

    def __init__(self, model: nn.Module) -> None:
        self.parameter_names = trainable_names(model)
        self.tied_names = tied_names(model)
        self._layer = output_layer(model, "ShapFed")

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Do nothing: there is no validation set to look at."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Return each client's mean cosine over the classes, ``[m]``, in [-1, 1]."""
        layer = updates.client_updates[:, self._layer.weight].view(-1, *self._layer.shape)
        # The aggregate is made of updates as the stages shorten them. Otherwise one update that is
        # far longer than the others would make up most of it, and all would be compared with that.
        weights = updates.num_examples * updates.shortening
        values = shapfed_contributions(layer, weights.to(layer.device))
        # The cosines are computed in float64: the rounding that counts is that of the updates.
        return Scores(values.cpu(), resolution=4 * torch.finfo(layer.dtype).eps)


@dataclass(frozen=True)
class CosineWeighting(FullWeighting):
    """A Weighting that does not map cosines to [0, 1], since they have a scale of their own."""

    round_normalization: RoundNormalization = False


class ShapFed(ScoredStrategy):
    """ShapFed: weigh by smoothed class-wise agreement; negative agreement counts as 0.

    Paper: Tastan et al., *Redefining Contributions: Shapley-Driven Federated Learning*, 2024.

    The code of its authors differs from this strategy:

    - It joins each class's bias to the class's row of the last layer, and compares models. Here
      updates are compared, without the bias.
    - It compares clients with their mean, weighted by the weights of the round before (equal ones
      in the first round). Here they are compared with the mean of the updates, as stages have
      shortened them, weighted by examples.
    - It takes a client's first value whole. Here weight scores start at 0.
    - It keeps 0.95 of the old value. Here the default is ``1 - gamma`` = 0.5.
    - It sends every client a model of its own. Here all clients receive the same model.

    Parameters
    ----------
    model : torch.nn.Module
        A copy of the model that is trained (see :class:`ShapFedValuation`).
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
        """Return a bound on lengths alone: without a validation set none can be set on the loss."""
        return [Clip(2.0)]

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the arrays of ``model``, by name."""
        return self._own_shapes
