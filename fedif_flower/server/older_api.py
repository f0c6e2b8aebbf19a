"""Flower's older API, which no strategy here serves: each way into it ends in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NoReturn

from fedif_flower.errors import ConfigError
from fedif_flower.messages.text import MESSAGE_API

# How its strategies' arguments are called now; empty: there is no such thing.
_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "fraction_fit": "fraction_train",
        "min_fit_clients": "min_train_nodes",
        "min_evaluate_clients": "min_evaluate_nodes",
        "min_available_clients": "min_available_nodes",
        "fit_metrics_aggregation_fn": "train_metrics_aggr_fn",
        "evaluate_metrics_aggregation_fn": "evaluate_metrics_aggr_fn",
        "initial_parameters": "initial_arrays of start()",
        "evaluate_fn": "evaluate_fn of start()",
        "on_fit_config_fn": "train_config of start()",
        "on_evaluate_config_fn": "evaluate_config of start()",
        "accept_failures": "",
        "inplace": "",
    }
)


def refuse_older_arguments(strategy: str, names: Iterable[str]) -> None:
    """Raise ConfigError for an argument of the older API's strategies.

    Parameters
    ----------
    strategy : str
        What was called with them.
    names : iterable of str
        Those of its keyword arguments that it does not have.
    """
    for name in names:
        if name not in _ARGUMENTS:
            continue
        now = _ARGUMENTS[name]
        instead = f"there it is {now}" if now else "there is no such argument there"
        raise ConfigError(f"{strategy}: {name} is of Flower's older API; {MESSAGE_API}: {instead}")


class MessageApiOnly:
    """Refuses to be the strategy of the older API's server, workflows and wrappers."""

    def initialize_parameters(self, *_: object, **__: object) -> NoReturn:
        """Refuse: Flower's older API begins with this."""
        self._refuse()

    def configure_fit(self, *_: object, **__: object) -> NoReturn:
        """Refuse: Flower's older API asks whom to train by this."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"{type(self).__name__} was given to Flower's older API (ServerConfig, start_server, "
            f"a workflow); {MESSAGE_API}: call {type(self).__name__}.start(grid, initial_arrays)"
        )
