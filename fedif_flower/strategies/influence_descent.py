"""Influence descent: weights that go down the validation loss, step by step."""

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
from fedif_flower.valuation.parts import missing_classes

ENOUGH_EXAMPLES = 100  # docs/methods/influence-descent.md says what fewer cost.
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DescentSettings(CheckedFields):
    """How a round of influence descent goes down the validation loss.

    Parameters
    ----------
    steps : int
        Steps that are tried in a round, >= 1.
    examples : int
        How many examples of D' a round's descent looks at, >= 0, drawn anew for each round,
        of each class in proportion to its share; 0: all of them.
    relative : bool
        Weigh members against each other alone: who shortens or lengthens the step, or repeats the
        last one, gains no weight by it (see
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
    r"""Descend the validation loss of the new model over the aggregation weights.

    .. math:: p = \frac{n_i}{\sum_j n_j}; \quad \text{repeat:} \quad
              g = \nabla \ell\Big(w_{t-1} + \sum_i p_i u_i, D'\Big), \quad
              p_i \propto p_i e^{-\eta \max(d_i / \sigma, -2)}, \quad
              d_i = \langle u_i, g \rangle - \sum_j p_j \langle u_j, g \rangle

    with :math:`\sigma^2 = \sum_j p_j d_j^2` and :math:`u_i` client i's update, shortened where
    a stage says so. FedIF's influence is this slope at p = 0, before any update is
    taken. Properties: :func:`~fedif_flower.valuation.descent.descend_weights`. Weights do not
    depend on earlier rounds.

    Scores are relative weights :math:`r_i = p_i \sum_j n_j / n_i`, 1 for a client that counts as
    much as its examples say; weight scores are their running means,
    :math:`\Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma r_i` from :math:`\Omega_i = 1`.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    descent : DescentSettings
        How far and on what a round descends.
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
        # Where weights are relative: the models ``[d]`` that rounds began with, the last one last.
        self._models: tuple[Tensor, ...] = ()
        self.ledger = ScoreLedger(gamma, initial=1.0)
        _warn_of(validation)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the model needed to go on; where they count, models too."""
        return super().state_dict() | {"models": list(self._models)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        models = state.get("models")
        if models is None:  # Earlier versions kept two.
            models = [state.get("model_before"), state["last_model"]]
        self._models = tuple(model for model in models if model is not None)

    def take_back(self) -> None:
        """Forget the step to the model that goes back, if a round has begun with that."""
        if self._models and torch.equal(self._models[-1], self.model.vectors.params):
            self._models = self._models[:-1]
        super().take_back()

    def _last_step(self, params: Tensor) -> Tensor | None:
        """Return the last step ``[d]`` that led to a model ``[d]``; ``None``: there was none.

        A round that failed, or led nowhere, made no step: the one before it is the last.
        """
        model = params.cpu().clone()
        if not self._models or not torch.equal(model, self._models[-1]):
            # One more than a step needs, for where the last one is taken back.
            self._models = (*self._models[-2:], model)
        if len(self._models) < 2:
            return None
        return params - self._models[-2].to(params)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]`` that the descent ends with, and the losses on its way."""
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
        # A claim of next to nothing would make the score infinite, which fails the round.
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
        """Return the part of D' that the round's descent looks at."""
        if not self.descent.examples:
            return self.validation
        generator = torch_generator("descent", self.seed, server_round)
        return self.validation.sample(self.descent.examples, generator)


def _warn_of(validation: Validation) -> None:
    """Say what the weights cannot learn from a validation set."""
    if validation.num_examples < ENOUGH_EXAMPLES:
        logger.warning(
            "influence descent: %d validation examples are few; weights may fit them alone",
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
