"""The settings of a run without a run config, as far as its strategy and attribution show them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedif_flower.attribution.callback import PathAttribution
from fedif_flower.run.provenance import data_hash
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.run import RunningStrategy
from fedif_flower.tasks.structures import tensors_of
from fedif_flower.valuation import Validation

STAGES_KEY = "stages"  # The strategy's stages as text; no run config has this key.


def known_settings(
    strategy: RunningStrategy, attribution: PathAttribution | None
) -> dict[str, Any]:
    """Return the settings that a strategy and an attribution show, by run-config key."""
    settings: dict[str, Any] = {"strategy": type(strategy).__name__}
    weighing = None
    if isinstance(strategy, ScreenedStrategy):
        weighing = strategy.validation
        settings[STAGES_KEY] = repr(strategy.stages)
        settings["pace.late-rounds"] = strategy.setup.pace.late_rounds
    if attribution is None:
        return settings
    settings["attribution"] = attribution.rule
    for name in ("length", "borrowed", "weight"):
        bound = 0.0  # Credit is not bounded.
        if attribution.bounds is not None:
            bound = getattr(attribution.bounds, name)
        settings[f"credit.{name}"] = bound
    settings["credit.secret-validation"] = _are_other_data(weighing, attribution.validation)
    return settings


def _are_other_data(weighing: Validation | None, paying: Validation) -> bool:
    """Whether a strategy weighs by other held-out data than contributions are measured on."""
    if weighing is None or weighing is paying:
        return False
    return data_hash(tensors_of_validation(weighing)) != data_hash(tensors_of_validation(paying))


def tensors_of_validation(validation: Validation) -> list[Tensor]:
    """Return the tensors of a validation set's batches, in the order of the batches."""
    tensors: list[Tensor] = []
    for batch in validation.batches:
        tensors += tensors_of(batch.content)
    return tensors
