"""The arguments that every strategy takes, said once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

from fedif_flower.messages.means import MetricsAggregation
from fedif_flower.stages import Stage
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.setup import DEFAULTS, Setup


class FlowerArguments(TypedDict, total=False):
    """Those of Flower's ``FedAvg`` that are handed on to it as they are."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str


class BaseArguments(FlowerArguments, total=False):
    """Flower's arguments, and those of :class:`~fedif_flower.strategies.ScreenedStrategy`."""

    train_metrics_aggr_fn: MetricsAggregation | None
    evaluate_metrics_aggr_fn: MetricsAggregation | None
    stages: Sequence[Stage] | None
    callbacks: Sequence[Callback]
    setup: Setup


def naming(base: BaseArguments, model: Any) -> BaseArguments:
    """Return them with the names of arrays of a model of one's own, where the setup gives none.

    It has ``parameter_names`` and ``tied_names``, as a Validation has.
    """
    setup = base.get("setup", DEFAULTS)
    trained, tied = setup.trainable_keys, setup.tied_keys
    named = replace(
        setup,
        trainable_keys=model.parameter_names if trained is None else trained,
        tied_keys=model.tied_names if tied is None else tied,
    )
    return {**base, "setup": named}
