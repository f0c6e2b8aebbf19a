"""Local methods by their names in ``local-method = "..."``: one line each."""

from __future__ import annotations

from fedif_flower.local_methods.local_method import LocalMethod
from fedif_flower.local_methods.moon import Moon
from fedif_flower.local_methods.scaffold import Scaffold
from fedif_flower.registry import Registry
from fedif_flower.sections import SectionedSettings
from fedif_flower.settings import setting
from fedif_flower.tasks.task import Task

# A constructor can take, beside its settings, the number of the task's classes and the run's seed.
LOCAL_METHODS = Registry(
    "local_method",
    {"sgd": LocalMethod, "scaffold": Scaffold, "moon": Moon},
    offered=("num_classes", "seed"),
    makes=(LocalMethod,),
)


class LocalMethodConfig(SectionedSettings):
    """Which local method clients use."""

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
        If there is no such method, its settings are wrong, or the name stands for something else
        than a local method.
    """
    offered = {"num_classes": task.num_classes or 0, "seed": seed}
    return config.build("local_method", LocalMethod, offered)
