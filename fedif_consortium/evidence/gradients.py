"""The server publishes the gradient of its held-out loss: it goes out with each round's model."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flwr.app import ArrayRecord

from fedif_consortium.evidence.kept_gradients import GRADIENT
from fedif_flower.errors import ValuationError, require
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.run.config import RunConfig
from fedif_flower.run.own_sections import CreditSettings
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.server.record import Round
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.settings import Settings, in_section, setting
from fedif_flower.valuation import Validation

logger = logging.getLogger(__name__)


class GradientSettings(Settings, alias_generator=in_section("gradients")):
    """Whether the server publishes gradients, so that members can inspect their own data."""

    publish: bool = setting(
        False,
        "each model goes to the members with the gradient of the validation loss at it, for "
        "`fedif inspect` on their own hosts ([what that gives away](methods/local-methods.md))",
        changes_result=False,
    )


class PublishGradients(RunPart):
    """``gradients.publish``: members can inspect their own data with ``fedif inspect``."""

    settings = GradientSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError if gradients are published, but the validation data are secret."""
        is_published = config.section(GradientSettings).publish
        is_secret = config.section(CreditSettings).secret_validation
        is_fine = not (is_published and is_secret)
        require(is_fine, "gradients.publish", True, "false with credit.secret-validation")

    def build(self, run: RunContext) -> Built:
        """Return the callback that sends the gradient with each model."""
        if not run.config.section(GradientSettings).publish:
            return NOTHING
        return Built(callbacks=[PublishedGradients(run.loaded.validation)])


class PublishedGradients(Callback):
    """Sends the gradient with the model, so that members can inspect their own data.

    If the strategy weighs by the same gradient, it is computed once for both.

    Parameters
    ----------
    validation : Validation
        The server's validation set.
    """

    def __init__(self, validation: Validation) -> None:
        self._validation = validation
        self._strategy: RunningStrategy | None = None
        self._record: ArrayRecord | None = None

    def on_start(self, strategy: RunningStrategy) -> None:
        """Keep the strategy, whose model is read in each round."""
        self._strategy = strategy

    def on_asked(self, current: Round) -> None:
        """Compute the gradient at the round's model; none is sent if that fails."""
        assert self._strategy is not None  # on_start
        self._record = None
        model = self._strategy.model
        try:
            begun = self._validation.gradients.begin(model.vectors.params, model.named_buffers)
            result = begun.result()
        except ValuationError as error:
            logger.warning("round %d: no gradient is published: %s", current.round, error)
            return
        self._record = tensor_arrays({GRADIENT: result.gradient.detach()})

    def enclose(self, node: ClientNode) -> Mapping[str, ArrayRecord]:  # noqa: ARG002
        """Return the record with the round's gradient, if there is one."""
        if self._record is None:
            return {}
        return {GRADIENT: self._record}
