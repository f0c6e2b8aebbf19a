"""Trigger unlearning: trains a model until it no longer reacts to the triggers that are found."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import refused_as, require_plain_archive
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder, write_tensors
from fedif_flower.run.loaded_task import LoadedTask, load_task
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.valuation import Validation
from fedif_flower.valuation.flat_model import FlatModel
from fedif_studies.backdoors.inversion import Triggers, held_out_images, invert_triggers

PASSES = 5  # At most.
STEPS = 300  # Of SGD, in each pass.


class FoundTrigger(NamedTuple):
    """The smallest mask of an inversion: its class, its share of the median mask, and a verdict."""

    label: int
    share: float
    is_trigger: bool


def unlearn_triggers(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    small: float = 0.5,
    batch_size: int = 16,
    learning_rate: float = 0.001,
    momentum: float = 0.9,
    generator: torch.Generator | None = None,
) -> list[FoundTrigger]:
    r"""Remove a backdoor with a trigger from a model, in place, with held-out images.

    Each pass inverts the triggers of all classes
    (:func:`~fedif_studies.backdoors.inversion.invert_triggers`). If the smallest mask covers less
    than the share ``small`` of the median mask, it is a trigger. Then the model f is trained, by
    SGD in evaluation mode, to

    .. math:: \min_f \operatorname{mean}_x \operatorname{CE}\big(f(x), f_0(x)\big)
              + \operatorname{CE}\big(f((1 - m) x + m p), y\big)

    The first term keeps the answers to images without a trigger: :math:`f_0` is the model as it was
    given, and its softmax is the target. The second term unlearns: y are the true classes, and m
    and p the mask and pattern of one of the triggers found so far, drawn for each batch. The passes
    end when no trigger is found. So a model without one is left as it is.

    Parameters
    ----------
    model : torch.nn.Module
        From images to logits ``[n, C]``; its trainable parameters are changed.
    inputs : Tensor
        ``[n, c, h, w]``: the images x, transformed as for the model, on its device.
    targets : Tensor
        ``[n]`` int64: the classes y.
    small : float
        In (0, 1).
    batch_size : int
        The number of images in a step of SGD, >= 1.
    learning_rate : float
        The learning rate of SGD, > 0.
    momentum : float
        The momentum of SGD, in [0, 1).
    generator : torch.Generator, optional
        Draws the batches and the images of the inversion; on the CPU.

    Returns
    -------
    list of FoundTrigger
        The smallest mask of each pass. The last one is not a trigger, unless there were too few
        passes.

    Raises
    ------
    ConfigError
        If ``small`` is out of range.

    References
    ----------
    Wang et al., "Neural Cleanse: Identifying and Mitigating Backdoor Attacks in Neural Networks",
    IEEE S&P 2019, section VI-C, for unlearning by the inverted trigger. The first term is
    distillation: Hinton et al., "Distilling the Knowledge in a Neural Network", 2015.
    """
    require(0.0 < small < 1.0, "small", small, "> 0 and < 1")
    model.eval()
    answers = _answers(model, inputs)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, learning_rate, momentum)
    verdicts: list[FoundTrigger] = []
    to_unlearn: list[tuple[Triggers, int]] = []
    for _ in range(PASSES):
        triggers = invert_triggers(model, inputs, answers.shape[1], generator=generator)
        label = triggers.smallest
        share = triggers.share_of_median(label)
        verdicts.append(FoundTrigger(label, share, is_trigger=share < small))
        if not share < small:
            break
        to_unlearn.append((triggers, label))
        for rows in _batches(len(targets), batch_size, generator):
            draw = int(torch.randint(len(to_unlearn), (), generator=generator))
            drawn_triggers, drawn_label = to_unlearn[draw]
            optimizer.zero_grad()
            clean_loss = functional.cross_entropy(model(inputs[rows]), answers[rows])
            stamped = drawn_triggers.stamp(inputs[rows], drawn_label)
            stamped_loss = functional.cross_entropy(model(stamped), targets[rows])
            torch.autograd.backward(clean_loss + stamped_loss)
            optimizer.step()
    return verdicts


def _answers(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the softmax ``[n, C]`` of a model's outputs, without gradients."""
    frozen = copy.deepcopy(model).requires_grad_(False)
    return torch.cat([frozen(batch).softmax(dim=1) for batch in torch.split(inputs, 256)])


def _batches(count: int, batch_size: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    """Yield the rows of the batches of a pass, epoch after epoch."""
    left = STEPS
    while left:
        order = torch.randperm(count, generator=generator)
        epoch = torch.split(order, batch_size)[:left]
        yield from epoch
        left -= len(epoch)


@dataclass(frozen=True)
class Unlearned:
    """The result of unlearning on a run's model.

    Attributes
    ----------
    found : list of FoundTrigger
        The smallest mask of each pass.
    validation, test : tuple of float
        The accuracy on the validation and on the test split, before and after.
    attack_success : tuple of float, optional
        The share of test images with the attack's trigger that are taken for its target class,
        before and after; ``None`` unless the run's own attack is a backdoor.
    path : Path, optional
        The new model's file; ``None`` if no trigger was found and the model is as it was.
    """

    found: list[FoundTrigger]
    validation: tuple[float, float]
    test: tuple[float, float]
    attack_success: tuple[float, float] | None
    path: Path | None


def unlearn_run(run_dir: Path, small: float = 0.5) -> Unlearned:
    """Look for a trigger in a run's model, unlearn it, and write the new model beside the old one.

    The model is trained on the run's validation images, with the clients' learning rate, momentum
    and batch size (:func:`unlearn_triggers`). The run's own ``model.pt`` and records stay as they
    are. If no trigger is found, a model that an earlier call has written is removed.

    Parameters
    ----------
    run_dir : Path
        The folder of a complete run.
    small : float
        In (0, 1): a mask of less than this share of the median mask is a trigger.

    Raises
    ------
    ConfigError
        If the run is not complete, its model file is damaged or of another model, or its task is a
        user's own or not one of images with classes.
    """
    folder = RunFolder(run_dir)
    needed = (folder.summary.path, folder.config.path, folder.model)
    if not all(path.is_file() for path in needed):
        raise ConfigError(f"{str(run_dir)!r} holds no complete run with its model")
    config = RunConfig.of_records(folder.config.read(), where=str(folder.config.path))
    loaded = load_task(config)
    inputs, targets = held_out_images(loaded.validation, "unlearning")
    model = _trained_model(folder, loaded)
    splits = {"validation": loaded.validation, "test": loaded.test}
    if loaded.triggered is not None:
        splits["attack_success"] = loaded.triggered
    before = _accuracies(splits, model)
    training = config.extract(TrainingConfig)
    triggers = unlearn_triggers(
        model,
        inputs,
        targets,
        small=small,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        momentum=training.momentum,
        generator=torch_generator("trigger-unlearning", config.seed),
    )
    written = folder.unlearned
    path = None
    if triggers[0].is_trigger:
        path = written
        write_tensors(path, {name: array.cpu() for name, array in model.state_dict().items()})
    else:
        written.unlink(missing_ok=True)  # An earlier call with another ``small`` may have left it.
    after = _accuracies(splits, model)
    attack_success = None
    if "attack_success" in splits:
        attack_success = (before["attack_success"], after["attack_success"])
    return Unlearned(
        triggers,
        validation=(before["validation"], after["validation"]),
        test=(before["test"], after["test"]),
        attack_success=attack_success,
        path=path,
    )


def _trained_model(folder: RunFolder, loaded: LoadedTask) -> nn.Module:
    """Return the task's model with the parameters of a run's ``model.pt``."""
    model = loaded.model.to(loaded.validation.device)
    with refused_as(ConfigError, f"{folder.model} holds no model of this run"):
        require_plain_archive(folder.model)
        arrays = torch.load(folder.model, weights_only=True, map_location="cpu")
        model.load_state_dict(arrays)
    return model


def _accuracies(splits: Mapping[str, Validation], model: nn.Module) -> dict[str, float]:
    """Return the share of right answers on each split, by the splits' names."""
    accuracies = {}
    for name, split in splits.items():
        params = FlatModel(model, split.device).params
        accuracies[name] = split.accuracy(params, dict(model.named_buffers()))
    return accuracies
