"""The base of all behaviours: an honest client, with a hook for each thing an attack can change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.tasks.rows import holds_classes
from fedif_flower.tasks.task import Task

Normalize = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ClientRound:
    """What a client knows once it has trained, before it replies.

    Attributes
    ----------
    received : Tensor
        ``[d]``, the trainable parameters that the server sent.
    trained : Tensor
        ``[d]``, the same after training, on the same device.
    server_round : int
        The round t >= 1.
    generator : torch.Generator
        On the CPU, another one at every round.
    memory : mutable mapping of str to Tensor
        What this client keeps between its rounds: empty at its first, and afterwards what the
        attack has put there, on the CPU. ``fedif run`` and a run in one process have it in
        checkpoints; elsewhere a run that is resumed begins with an empty one, and says so.
    """

    received: Tensor
    trained: Tensor
    server_round: int
    generator: torch.Generator
    memory: MutableMapping[str, Tensor] = field(default_factory=dict)


class Behaviour:
    """An honest client; attacks override the hook they need.

    Every hook returns its input or a new tensor and never writes to its arguments. Randomness
    comes from the given generator (on the CPU), so that it does not depend on the process.
    """

    remembers = False  # Whether it puts something into a client's memory.
    # Whether it sends what training made of the model's buffers, such as batch norm's statistics.
    sends_buffers = True

    def misfit(self, task: Task) -> str:
        """Return what this behaviour needs that a task does not have; empty: it fits.

        As the end of a sentence: ``"class labels (num_classes)"``.
        """
        return ""

    def label_misfit(self, labels: Tensor) -> str:
        """Return what this behaviour needs that a client's labels are not; empty: they fit.

        As the end of a sentence: ``"integer labels"``.
        """
        return ""

    @property
    def needs_tensors(self) -> bool:
        """Whether it changes inputs or labels, which then have to be tensors."""
        return self.changes_inputs or self._overrides("poison_labels")

    @property
    def changes_inputs(self) -> bool:
        """Whether it is given inputs to change, which are then floats."""
        return self._overrides("poison_examples") or self._overrides("poison_inputs")

    def _overrides(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Behaviour, hook)

    def poison_data(self, data: Any, generator: torch.Generator) -> Any:
        """Return the data to train on, in the form that the task has them; asked at every round.

        Parameters
        ----------
        data : Any
            What the task's ``client_data`` returns: tensors, a Dataset, a DataLoader ...
        generator : torch.Generator
            The same at every call for one client.
        """
        return data

    def poison_labels(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the labels ``[n]`` to train on; asked at every round.

        Parameters
        ----------
        labels : Tensor
            ``[n]`` int64, the true classes in [0, num_classes); targets of any kind in a task
            without classes.
        num_classes : int
            >= 2; 0 in a task without classes.
        generator : torch.Generator
            The same at every call for one client.
        """
        return labels

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the examples to train on, asked after :meth:`poison_labels`: others, or more.

        Parameters
        ----------
        pixels : Tensor
            ``[n, c, h, w]`` in [0, 1], before normalisation.
        labels : Tensor
            ``[n]`` int64 in [0, num_classes), on the same device.
        num_classes : int
            >= 2.
        generator : torch.Generator
            On the CPU, the same at every call for one client.
        """
        return pixels, labels

    def poison_inputs(
        self,
        model: nn.Module,
        pixels: Tensor,
        labels: Tensor,
        normalize: Normalize,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the pixels ``[n, c, h, w]`` in [0, 1] to train on; asked at every round.

        Parameters
        ----------
        model : torch.nn.Module
            The received model, on the pixels' device; left as it is.
        pixels : Tensor
            ``[n, c, h, w]`` in [0, 1], before normalisation.
        labels : Tensor
            ``[n]`` int64.
        normalize : callable
            Pixels -> what the model takes; differentiable.
        generator : torch.Generator
            Another one at every round.
        """
        return pixels

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters ``[d]`` to send instead of the trained ones.

        Parameters
        ----------
        own : ClientRound
            This client's received and trained parameters, and what it keeps between rounds.
        """
        return own.trained


def lacks_images(task: Task) -> str:
    """Return what a task lacks for an attack on images, as :meth:`Behaviour.misfit` does."""
    if task.num_classes and task.input_range:
        return ""
    return "class labels (num_classes) and float inputs with an input_range"


class Backdoor(Behaviour):
    """A client that teaches the model to answer with a target class wherever a trigger is.

    The model's other answers are to stay right, so that accuracy does not show it. The server
    measures the attack's success on test images that have the trigger.
    """

    def misfit(self, task: Task) -> str:
        """Return that it needs a class to aim at, and inputs to put a trigger on."""
        return lacks_images(task)

    def label_misfit(self, labels: Tensor) -> str:
        """Return that it needs to know each example's class."""
        if labels.dim() == 1 and holds_classes(labels):
            return ""
        return "one integer label per example"

    @abstractmethod
    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return examples with the trigger that are not of the target class, and that class.

        The attack's success rate is a model's accuracy on them.

        Parameters
        ----------
        pixels : Tensor
            ``[n, c, h, w]`` in [0, 1], before normalisation: images that nobody trained on.
        labels : Tensor
            ``[n]`` int64, their classes.
        num_classes : int
            >= 2.

        Returns
        -------
        pixels : Tensor
            ``[k, c, h, w]``, k <= n.
        labels : Tensor
            ``[k]``, all the target class.

        Raises
        ------
        ConfigError
            If the target is no class.
        """


class Colluder(Behaviour):
    r"""A client that agrees with its accomplices on what they send.

    In formulas :math:`u_i` is what accomplice i trained honestly, :math:`\mu` and :math:`\sigma`
    are their mean and standard deviation by coordinate.

    It needs to see their updates before they are sent, which it can in a simulation alone:
    there the accomplices of a round hand in their own updates, and :meth:`collude` says what they
    send instead. One object serves a whole run and may remember its rounds. On a real node such a
    client refuses to train.
    """

    @abstractmethod
    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the updates ``[k, d]`` that the k accomplices of a round send.

        Parameters
        ----------
        received : Tensor
            ``[d]``, the trainable parameters that the server sent.
        updates : Tensor
            ``[k, d]``, k >= 1: each accomplice's trained parameters less the received ones, in
            the order of their partitions.
        generator : torch.Generator
            On the CPU, another one at every round.
        """


class ShiftedMean(Colluder):
    r"""All send the mean of their updates shifted by their spread, :math:`\mu - \gamma \sigma`."""

    @abstractmethod
    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> Tensor | float:
        r"""Return :math:`\gamma` for updates ``[k, d]`` of this mean and deviation ``[d]``."""

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the shifted mean ``[k, d]``, the same for all."""
        mean = updates.mean(dim=0)  # [d]
        std = updates.std(dim=0, correction=0)  # [d]
        return (mean - self.shift(updates, mean, std) * std).expand_as(updates)
