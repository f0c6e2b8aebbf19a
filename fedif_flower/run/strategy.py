"""How the strategy that a run config names is built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from fedif_flower.attacks import malicious_partitions
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import build_local_method
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.config import RunConfig
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.nodes import identify_clients
from fedif_flower.server.setup import DEFAULTS, BaseArguments, Setup
from fedif_flower.strategies.config import configured_stages
from fedif_flower.strategies.fedprox import FedProx
from fedif_flower.strategies.registry import StrategyParts, build_named
from fedif_flower.tasks.config import TrainingConfig

# Arguments of Setup that are settings of the run config under the same name.
SAME_NAMES = (
    "device",
    "min_valid_replies",
    "max_failed_rounds",
    "max_paused_turns",
    "max_examples_ratio",
)


def build_strategy(
    loaded: LoadedTask, setup: Mapping[str, Any] = MappingProxyType({})
) -> ScreenedStrategy:
    """Return the strategy that the run config names.

    Parameters
    ----------
    loaded : LoadedTask
        The run's task and settings.
    setup : mapping
        Arguments of :class:`~fedif_flower.server.setup.Setup` that the parts of the run set.

    Raises
    ------
    ConfigError
        If the strategy does not fit the task or the settings.
    """
    config = loaded.config
    base = BaseArguments(
        fraction_train=config.share_at_work,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=config.num_clients,
        stages=configured_stages(config, loaded.validation),
        callbacks=(),
        setup=_setup(loaded, setup),
    )
    parts = StrategyParts(
        num_clients=config.num_clients,
        clients_per_round=config.fewest_replies,
        malicious_fraction=config.assumed_malicious_fraction,
        seed=config.seed,
        training=config.extract(TrainingConfig),
        model=loaded.model,
        validation=loaded.validation,
        task=loaded.task,
        root_data=loaded.validation_data,
        is_malicious=malicious_marker(config),
        base=base,
    )
    strategy = build_named(config.strategy, parts, config.settings_of("strategy"))
    if isinstance(strategy, FedProx) and strategy.proximal_mu and loaded.task.train is not None:
        raise ConfigError(
            f"strategy = {config.strategy!r} adds a term to the local loss, but task "
            f"{loaded.task.name!r} trains by a function of its own: choose another strategy"
        )
    return strategy


def _setup(loaded: LoadedTask, of_parts: Mapping[str, Any]) -> Setup:
    """Return the setup of the strategy: by the run config, the task, and the parts of the run."""
    config = loaded.config
    same = {name: getattr(config, name) for name in SAME_NAMES}
    # The seed comes first: a part may set another one.
    arguments = {"seed": config.seed, **same, **of_parts}
    return Setup(
        trainable_keys=loaded.validation.parameter_names,
        tied_keys=loaded.validation.tied_names,
        max_num_examples=loaded.task.num_train or DEFAULTS.max_num_examples,
        pace=config.pace.pace(),
        local_method=build_local_method(config, loaded.task, config.seed),
        identify=identify_clients,
        **arguments,
    )


def malicious_marker(config: RunConfig) -> Callable[[ClientNode], bool]:
    """Return a function that tells which clients are known to misbehave."""
    malicious: Collection[int] = ()
    if config.attack != "none":
        malicious = malicious_partitions(config.num_clients, config.malicious_fraction, config.seed)

    def is_malicious(node: ClientNode) -> bool:
        if node.attack:  # In a demo, a node says itself whether it attacks.
            return node.attack != "none"
        return node.partition_id in malicious

    return is_malicious
