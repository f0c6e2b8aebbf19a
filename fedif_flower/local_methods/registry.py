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

_BUILT_IN: Mapping[str, Callable[..., LocalMethod]] = MappingProxyType(
    {"sgd": LocalMethod, "scaffold": Scaffold, "moon": Moon}
)

LOCAL_METHODS = Registry("local_method", _BUILT_IN)


class LocalMethodConfig(SectionedSettings):
    """What clients do beside plain SGD."""

    registries: ClassVar[Mapping[str, Registry]] = MappingProxyType({"local_method": LOCAL_METHODS})

    local_method: str = setting(
        "sgd",
        "how clients train: `sgd` on the loss as it is; `scaffold`: corrected by control variates; "
        "`moon`: with a contrastive term (`docs/methods/local-methods.md`); with any strategy that "
        "gives each update a coefficient",
        choices=LOCAL_METHODS,
        is_new=True,
    )


def build_local_method(config: LocalMethodConfig) -> LocalMethod:
    """Return the method that a config names.

    Raises
    ------
    ConfigError
        If it stands for something else.
    """
    name = config.local_method
    made = make(
        f"local-method {name!r}", LOCAL_METHODS[name], {}, config.settings_of("local_method")
    )
    if not isinstance(made, LocalMethod):
        raise ConfigError(
            f"local-method = {name!r} is of type {type(made).__name__}; allowed: a subclass of "
            "fedif_flower.local_methods.LocalMethod"
        )
    return made
