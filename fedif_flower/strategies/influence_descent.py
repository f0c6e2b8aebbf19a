"""Influence descent: weights that descend the validation loss of the new model, step by step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from fedif_flower.constructors import CheckedFields
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import BaseArguments, require_kind, with_names_of
from fedif_flower.settings import Setting
from fedif_flower.strategies.scored import bounds, warn_of_zeros
from fedif_flower.valuation import Validation
from fedif_flower.valuation.descent import descend_round
from fedif_flower.valuation.ledger import Gamma, ScoreLedger
from fedif_flower.valuation.subsets import missing_classes

# With fewer validation examples a warning is logged (see docs/methods/influence-descent.md).
ENOUGH_EXAMPLES = 100
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DescentSettings(CheckedFields):
    """How a round of influence descent descends the validation loss.

    Parameters
    ----------
    steps : int
        The number of descent steps that are tried in a round, >= 1.
    examples : int
        The number of examples of D' that a round's descent uses, >= 0; 0: all of them. They are
        drawn anew for each round, from each class in proportion to its share.
    relative : bool
        Whether to weigh members only against each other. Then a member gains no weight by
        shortening or lengthening the round's step, or by repeating the last one (see
        :func:`~fedif_flower.valuation.descent.descend_weights`).
    """

    steps: Annotated[
        int, Setting("steps down the validation loss that are tried in a round", ge=1)
    ] = 8
    examples: Annotated[
        int,
        Setting(
            "how many validation examples a round looks at, drawn anew for each round, of each "
            "class in proportion to its share; 0: all",
            ge=0,
        ),
    ] = 500
    relative: Annotated[
        bool,
        Setting(
            "weigh members against each other alone, so that nobody gains weight by shortening or "
            "lengthening the step, or by repeating the last one"
        ),
    ] = False


DEFAULT_DESCENT = DescentSettings()


class InfluenceDescent(ScreenedStrategy):
    r"""Influence descent: choose weights that descend the validation loss of the new model.

    .. math:: p_i = \frac{n_i}{\sum_j n_j}; \quad \text{repeat:} \quad
              g = \nabla \ell\Big(w_{t-1} + \sum_i p_i u_i, D'\Big), \quad
              p_i \propto p_i e^{-\eta \max(d_i / \sigma, -2)}, \quad
              d_i = \langle u_i, g \rangle - \sum_j p_j \langle u_j, g \rangle

    with :math:`n_i` client i's number of examples, :math:`p_i` its weight, :math:`u_i` its update
    as the stages have shortened it, :math:`\ell(w, D')` the loss of the model w on the held-out set
    D', :math:`w_{t-1}` the global model, :math:`\sigma^2 = \sum_j p_j d_j^2`, and :math:`\eta` the
    step size, which is 1 at first and is halved after a step that would raise the loss. FedIF's
    unnormalised influence is :math:`-\langle u_i, g \rangle` at p = 0, where g is the gradient at
    the old model. Properties: :func:`~fedif_flower.valuation.descent.descend_weights`. Unless
    ``descent.relative`` is set, weights do not depend on earlier rounds.

    A client's score is its relative weight :math:`r_i = p_i \sum_j n_j / n_i`, which is 1 if it
    counts as much as its share of the examples. Its weight score is the running mean of its scores,
    :math:`\Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma r_i` from :math:`\Omega_i = 1`. Weight
    scores do not enter the weights.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    descent : DescentSettings
        The descent's number of steps and of examples, and whether it is relative.
    gamma : float
        Rate of the weight scores' smooth update, in (0, 1].
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    default_stages = staticmethod(bounds)
    validation: Validation
    ledger: ScoreLedger
    made_of = MappingProxyType({"descent": DescentSettings})

    def __init__(
        self,
        validation: Validation,
        *,
        descent: DescentSettings = DEFAULT_DESCENT,
        gamma: Gamma = 0.3,
        **base: Unpack[BaseArguments],
    ) -> None:
        require_kind(self, "validation", validation, Validation)
        super().__init__(**with_names_of(validation, base))
        self.validation = validation
        self.descent = descent
        # With relative weights: the last models ``[d]`` that rounds began with, at most three, each
        # once and in their order. Otherwise empty.
        self._models: tuple[Tensor, ...] = ()
        self.ledger = ScoreLedger(gamma, initial=1.0)
        _warn_of(validation)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a run needs to go on, except the global model.

        With relative weights, the models of the last rounds are part of it.
        """
        return super().state_dict() | {"models": list(self._models)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        models = state.get("models")
        if models is None:  # Earlier versions saved the last two, under names of their own.
            models = [state.get("model_before"), state["last_model"]]
        self._models = tuple(model for model in models if model is not None)

    def take_back(self) -> None:
        """Forget the step to the model that is taken back, if a round has begun with that model."""
        if self._models and torch.equal(self._models[-1], self.model.vectors.params):
            self._models = self._models[:-1]
        super().take_back()

    def _last_step(self, params: Tensor) -> Tensor | None:
        """Remember the model ``params`` [d], and return the last step ``[d]``, which led to it.

        ``None`` if no step is known. A round that failed, or left the model where it was, made no
        step: the next round begins with the same model, which is remembered once.
        """
        model = params.cpu().clone()
        if not self._models or not torch.equal(model, self._models[-1]):
            # A step needs two models. A third one is kept in case the last model is taken back.
            self._models = (*self._models[-2:], model)
        if len(self._models) < 2:
            return None
        return params - self._models[-2].to(params)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]`` at which the descent ends, and the losses on its way."""
        last_step = self._last_step(updates.global_params) if self.descent.relative else None
        descent = descend_round(
            updates,
            self._sample(updates.server_round),
            updates.num_examples,
            steps=self.descent.steps,
            last_step=last_step,
            relative=self.descent.relative,
        )
        warn_of_zeros(updates, descent.slopes)
        # A client may claim next to no examples: its score would be infinite, and fail the round.
        examples = updates.num_examples.clamp_min(1e-9)
        scores = descent.weights * (examples.sum() / examples)
        return Aggregation(
            weights=descent.weights,
            scores=scores,
            weight_scores=self.ledger.update(updates.client_ids, scores),
            losses=descent.losses,
            evaluations=descent.evaluations,
        )

    def _sample(self, server_round: int) -> Validation:
        """Return the examples of D' that the round's descent uses."""
        if not self.descent.examples:
            return self.validation
        generator = torch_generator("descent", self.seed, server_round)
        return self.validation.sample(self.descent.examples, generator)


def _warn_of(validation: Validation) -> None:
    """Warn of a validation set that is too small, or lacks classes, for weights to be good."""
    if validation.num_examples < ENOUGH_EXAMPLES:
        logger.warning(
            "influence descent: only %d validation examples; weights may overfit them",
            validation.num_examples,
        )
    missing = missing_classes(validation)
    if missing:
        logger.warning(
            "influence descent: %d classes have no validation example, the first of them %d; "
            "weights will favour clients that forget these classes",
            len(missing),
            missing[0],
        )
