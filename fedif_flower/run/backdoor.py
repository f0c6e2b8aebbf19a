"""What the server measures a backdoor by: test examples with its trigger."""

from __future__ import annotations

from torch import nn

from fedif_flower.attacks import Backdoor, Behaviour
from fedif_flower.errors import DataError
from fedif_flower.tasks.batches import describe, tensor_pair
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation import Validation


def triggered_test(
    acting: Behaviour, task: Task, test_data: Data, model: nn.Module, device: str
) -> Validation | None:
    """Return the test split's examples with the trigger, labelled with the target.

    ``None`` where the run's attack is no backdoor. A model's accuracy there is the attack's success
    rate.

    Raises
    ------
    ConfigError
        If the target is no class.
    DataError
        If the test split is no pair of tensors.
    """
    if not isinstance(acting, Backdoor):
        return None
    pair = tensor_pair(test_data)
    if pair is None:
        raise DataError(
            f"a backdoor is measured on tensors; the test_data of task {task.name!r} are "
            f"{describe(test_data)}"
        )
    scaled, transform = task.in_unit_range(pair[0])
    inputs, targets = acting.triggered(scaled, pair[1], task.num_classes or 0)
    return Validation(model, transform(inputs), targets, loss_fn=task.loss, device=device)
