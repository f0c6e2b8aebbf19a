"""A finished run's model without the backdoor that its members trained into it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder, write_tensors
from fedif_flower.run.loaded_task import load_task
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.config import OWN, TrainingConfig
from fedif_flower.tasks.task import Task
from fedif_flower.valuation import Validation
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.trigger_inversion import held_out_images
from fedif_flower.valuation.trigger_unlearning import FoundTrigger, unlearn_triggers


@dataclass(frozen=True)
class Unlearned:
    """What was found, accuracies before and after on both held-out splits, and the file.

    ``path`` is ``None`` where no trigger was found: then the model is as it was.
    """

    found: list[FoundTrigger]
    validation: tuple[float, float]
    test: tuple[float, float]
    path: Path | None


def unlearn_run(run_dir: Path, task: Task | None = None, small: float = 0.5) -> Unlearned:
    """Look for a trigger in a run's model, train it away, and write the model beside it.

    It is trained on the run's validation images by the clients' learning rate, momentum and batch
    size (see :func:`~fedif_flower.valuation.trigger_unlearning.unlearn_triggers`). The run's own
    ``model.pt`` and records stay as they are.

    Parameters
    ----------
    run_dir : Path
        A complete run.
    task : Task, optional
        The app's own task, where the run had one.
    small : float
        In (0, 1): a mask of less than this share of the median one is a trigger's.

    Raises
    ------
    ConfigError
        If the run is not complete, its task is of no images with classes, or is its app's own and
        is not given.
    """
    folder = RunFolder(run_dir)
    if not folder.is_complete():
        raise ConfigError(f"{str(run_dir)!r} holds no complete run")
    config = RunConfig.of_records(folder.config.read())
    if task is None and config.task.startswith(OWN):
        raise ConfigError(f"the run's task is its app's own, {config.task!r}: it must be given")
    loaded = load_task(config, task)
    held_out_images(loaded.validation, "unlearning")  # Refused before anything is measured.
    model = loaded.model.to(loaded.validation.device)
    model.load_state_dict(torch.load(folder.model, weights_only=True, map_location="cpu"))
    splits = (loaded.validation, loaded.test)
    before = [_accuracy(split, model) for split in splits]
    found = unlearn_model(model, loaded.validation, config, small)
    after = [_accuracy(split, model) for split in splits]
    path = None
    if found[0].is_trigger:
        path = folder.unlearned
        write_tensors(path, {name: array.cpu() for name, array in model.state_dict().items()})
    validation, test = zip(before, after, strict=True)
    return Unlearned(found, validation, test, path)


def unlearn_model(
    model: nn.Module, validation: Validation, config: RunConfig, small: float = 0.5
) -> list[FoundTrigger]:
    """Train a run's model, in place, as :func:`unlearn_run` does; return what was found.

    Raises
    ------
    ConfigError
        If the validation set is of no images with classes.
    """
    training = config.part(TrainingConfig)
    return unlearn_triggers(
        model,
        *held_out_images(validation, "unlearning"),
        small=small,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        momentum=training.momentum,
        generator=torch_generator("trigger-unlearning", config.seed),
    )


def _accuracy(split: Validation, model: nn.Module) -> float:
    """Return the share of a split's right answers."""
    params = FlatModel(model, split.device).params
    return split.accuracy(params, dict(model.named_buffers()))
