"""Local methods by the name that ``local-method = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

from fedif_flower.errors import ConfigError
from fedif_flower.local_methods.local_method import LocalMethod
from fedif_flower.local_methods.moon import Moon
from fedif_flower.local_methods.scaffold import Scaffold
from fedif_flower.registry import Registry
from fedif_flower.sections import SectionedSettings, make
from fedif_flower.settings import setting
from fedif_flower.tasks.task import Task

_BUILT_IN: Mapping[str, Callable[..., LocalMethod]] = MappingProxyType(
    {
        "sgd": LocalMethod,
        "scaffold": Scaffold,
        "moon": Moon,
    }
)

# A constructor can have these beside its settings: the task's classes, the run's seed.
LOCAL_METHODS = Registry("local_method", _BUILT_IN, offered=("num_classes", "seed"))


class LocalMethodConfig(SectionedSettings):
    """What clients do beside plain SGD."""

    registries: ClassVar[Mapping[str, Registry]] = MappingProxyType({"local_method": LOCAL_METHODS})

    local_method: str = setting(
        "sgd",
        "how clients train: `sgd` on the loss as it is; `scaffold`: corrected by control variates; "
        "`moon`: with a contrastive term (`docs/methods/local-methods.md`)",
        choices=LOCAL_METHODS,
    )


def build_local_method(config: LocalMethodConfig, task: Task, seed: int) -> LocalMethod:
    """Return the method that a config names, for a task and the run's seed.

    Raises
    ------
    ConfigError
        If it stands for something else.
    """
    name = config.local_method
    offered = {"num_classes": task.num_classes or 0, "seed": seed}
    made = make(
        f"local-method {name!r}", LOCAL_METHODS[name], offered, config.settings_of("local_method")
    )
    if not isinstance(made, LocalMethod):
        raise ConfigError(
            f"local-method = {name!r} is of type {type(made).__name__}; allowed: a subclass of "
            "fedif_flower.local_methods.LocalMethod"
        )
    return made
