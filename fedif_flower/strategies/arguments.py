"""The arguments that every strategy here passes on to the base.

``*flower`` are those of Flower's ``FedAvg`` by position: ``fraction_train, fraction_evaluate,
min_train_nodes, min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn``. What a strategy needs beside
them (a validation set, a model) comes first, as in ``FedIF(validation, 0.1, 0.0)``; settings of
its own are given by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import torch

from fedif_flower.messages.means import MetricsAggregation
from fedif_flower.stages import Stage
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.nodes import Identify
from fedif_flower.strategies.streaming import AggregationMode


class BaseArguments(TypedDict, total=False):
    """The keyword arguments of :class:`~fedif_flower.strategies.screened.ScreenedStrategy`."""

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
    trainable_keys: Sequence[str] | None
    tied_keys: Mapping[str, str] | None
    seed: int
    identify: Identify | None
    node_timeout: float
    min_valid_replies: int
    max_failed_rounds: int
    max_paused_turns: int
    max_num_examples: float
    max_examples_ratio: float
    stages: Sequence[Stage] | None
    aggregation: AggregationMode
    device: str | torch.device
    callbacks: Sequence[Callback]
