"""Local methods: what clients add to plain SGD on their loss. One file each; no Flower, no I/O."""

from fedif_flower.local_methods.local_method import (
    Guide,
    Instructions,
    LocalMethod,
    LocalRound,
    LocalTerm,
    TakenIn,
    Turn,
    require_method_fit,
)
from fedif_flower.local_methods.moon import Moon
from fedif_flower.local_methods.registry import (
    LOCAL_METHODS,
    LocalMethodConfig,
    build_local_method,
)
from fedif_flower.local_methods.scaffold import Scaffold

__all__ = [
    "LOCAL_METHODS",
    "Guide",
    "Instructions",
    "LocalMethod",
    "LocalMethodConfig",
    "LocalRound",
    "LocalTerm",
    "Moon",
    "Scaffold",
    "TakenIn",
    "Turn",
    "build_local_method",
    "require_method_fit",
]
