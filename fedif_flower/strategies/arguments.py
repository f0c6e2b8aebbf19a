"""The arguments that every strategy takes, said once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from fedif_flower.messages.means import MetricsAggregation
from fedif_flower.stages import Stage
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.setup import DEFAULTS, Setup


class BaseArguments(TypedDict, total=False):
    """Flower's arguments, and those of :class:`~fedif_flower.strategies.ScreenedStrategy`."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: MetricsAggregation | None
    evaluate_metrics_aggr_fn: MetricsAggregation | None
    stages: Sequence[Stage] | None
    callbacks: Sequence[Callback]
    setup: Setup


def naming(base: BaseArguments, trainable: Sequence[str], tied: Mapping[str, str]) -> BaseArguments:
    """Return them with a model's own names of arrays, where the setup gives none."""
    return {**base, "setup": base.get("setup", DEFAULTS).naming(trainable, tied)}
