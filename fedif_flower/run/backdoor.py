"""What the server measures a backdoor by: test images with its trigger."""

from __future__ import annotations

import torch
from torch import nn

from fedif_flower.attacks import Backdoor, build_behaviour
from fedif_flower.run.config import RunConfig
from fedif_flower.tasks.data import Dataset, Normalization, split_test, to_pixels
from fedif_flower.valuation import Validation


def triggered_test(
    config: RunConfig, dataset: Dataset, normalize: Normalization, model: nn.Module
) -> Validation | None:
    """Return the test split's images with the trigger, labelled with the target.

    ``None`` where the run's attack is no backdoor. A model's accuracy there is the attack's success
    rate.

    Raises
    ------
    ConfigError
        If the target is no class.
    """
    behaviour = build_behaviour(config, partition_id=0, seed=config.seed)
    if not isinstance(behaviour, Backdoor):
        return None
    _, chosen = split_test(len(dataset.test.labels), config.seed)
    pixels, target = behaviour.triggered(
        to_pixels(dataset.test.images[chosen], dataset.max_value),
        torch.from_numpy(dataset.test.labels[chosen]),
        dataset.num_classes,
    )
    return Validation(model, normalize(pixels), target, device=config.device)
