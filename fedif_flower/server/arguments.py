"""Checks of the arguments that Flower defines: those of its ``FedAvg``, and of ``start``."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedif_flower.errors import ConfigError, is_count, require
from fedif_flower.server.summary import shown_setting


def require_flower_arguments(strategy: FedAvg) -> None:
    """Raise ConfigError if an argument of Flower's ``FedAvg`` is out of range or of a wrong type.

    The values are read from the strategy's attributes, where Flower's constructor has put them.
    """
    for name in ("fraction_train", "fraction_evaluate"):
        share = getattr(strategy, name)
        is_share = isinstance(share, Real) and 0 <= float(share) <= 1
        require(is_share, name, share, "a number >= 0 and <= 1")
    for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
        number = getattr(strategy, name)
        require(is_count(number), name, number, "an integer >= 0")
    for name in ("arrayrecord_key", "configrecord_key", "weighted_by_key"):
        key = getattr(strategy, name)
        require(isinstance(key, str) and bool(key), name, key, "a string that is not empty")
    # A message holds one record for each key: with equal keys the config would replace the model.
    differs = strategy.configrecord_key != strategy.arrayrecord_key
    words = f"another name than arrayrecord_key = {strategy.arrayrecord_key!r}"
    require(differs, "configrecord_key", strategy.configrecord_key, words)
    for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
        function = getattr(strategy, name)
        words = "a function of the replies' RecordDicts and the key of the weights"
        require(callable(function), name, function, words)


def require_start(
    grid: object,
    num_rounds: object,
    timeout: object,
    configs: Mapping[str, object],
    evaluate_fn: object,
) -> None:
    """Raise ConfigError if an argument of ``start`` is out of range or of a wrong type.

    Parameters
    ----------
    grid, num_rounds, timeout, evaluate_fn : object
        The arguments of ``start`` that have these names.
    configs : mapping of str to object
        The arguments ``train_config`` and ``evaluate_config``, by name.
    """
    _require_kind(isinstance(grid, Grid), "grid", grid, "a Grid, as a ServerApp's main receives it")
    require(is_count(num_rounds), "num_rounds", num_rounds, "an integer >= 0")
    are_seconds = timeout is None or (isinstance(timeout, Real) and float(timeout) >= 0)
    require(are_seconds, "timeout", timeout, "seconds, a number >= 0; None: without an end")
    for name, config in configs.items():
        is_config = config is None or isinstance(config, ConfigRecord)
        _require_kind(is_config, name, config, 'a ConfigRecord, as ConfigRecord({"lr": 0.1})')
    is_function = evaluate_fn is None or callable(evaluate_fn)
    words = "a function of a round and an ArrayRecord"
    _require_kind(is_function, "evaluate_fn", evaluate_fn, words)


def _require_kind(is_allowed: bool, name: str, value: object, allowed: str) -> None:
    """Raise ConfigError unless ``is_allowed``.

    Unlike :func:`require`, it shows a model by its type alone: if one was passed by mistake, the
    error does not print all its layers.
    """
    if not is_allowed:
        raise ConfigError(f"{name} = {shown_setting(value)}; allowed: {allowed}")
