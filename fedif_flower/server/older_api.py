"""Refusals of Flower's older API, which no strategy here supports, each with what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NoReturn

from fedif_flower.errors import ConfigError
from fedif_flower.messages.text import MESSAGE_API

# From an argument of the older API's strategies to its present name; empty: there is none.
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
    """Raise ConfigError if an unknown argument is one of the older API's strategies.

    Parameters
    ----------
    strategy : str
        The name of the strategy that was called.
    names : iterable of str
        The keyword arguments that the strategy does not have.
    """
    for name in names:
        if name not in _ARGUMENTS:
            continue
        now = _ARGUMENTS[name]
        instead = f"there it is {now}" if now else "there is no such argument there"
        raise ConfigError(f"{strategy}: {name} is of Flower's older API; {MESSAGE_API}: {instead}")


class MessageApiOnly:
    """A base of strategies that refuses the calls of the older API's server and workflows."""

    def initialize_parameters(self, *_: object, **__: object) -> NoReturn:
        """Refuse: this is the first method that Flower's older API calls."""
        self._refuse()

    def configure_fit(self, *_: object, **__: object) -> NoReturn:
        """Refuse: Flower's older API asks this method which clients train."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"{type(self).__name__} was given to Flower's older API (ServerConfig, start_server, "
            f"a workflow); {MESSAGE_API}: call {type(self).__name__}.start(grid, initial_arrays)"
        )
