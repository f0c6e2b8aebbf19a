"""The base classes of attacks: an honest client with a hook for each thing that it may change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fedif_flower.constructors import CheckedFields
from fedif_flower.settings import Setting
from fedif_flower.tasks.rows import holds_classes
from fedif_flower.tasks.task import Task

Normalize = Callable[[Tensor], Tensor]
Ratio = Annotated[float, Setting("share of the client's examples that it poisons", ge=0, le=1)]


@dataclass(frozen=True)
class ClientRound:
    """What a client knows after training, before it replies.

    Attributes
    ----------
    received : Tensor
        ``[d]``: the trainable parameters that the server sent.
    trained : Tensor
        ``[d]``: the same parameters after training, on the same device.
    server_round : int
        The round t >= 1.
    generator : torch.Generator
        On the CPU, seeded differently in every round.
    memory : mutable mapping of str to Tensor
        What this client keeps between its rounds, on the CPU: empty in its first round, afterwards
        what the attack has put there. ``fedif run`` and runs in one process keep it in checkpoints.
        Elsewhere a resumed run begins with an empty memory, and logs a warning.
    """

    received: Tensor
    trained: Tensor
    server_round: int
    generator: torch.Generator
    memory: MutableMapping[str, Tensor] = field(default_factory=dict)


class Behaviour(CheckedFields):
    """An honest client; attacks override the hook they need.

    Every hook returns its input or a new tensor and never writes to its arguments, except for
    :attr:`ClientRound.memory`. Random numbers are drawn from the given generator (on the CPU), so
    that they do not depend on the process.

    An attack that is a dataclass raises ConfigError if a field that it declares as a setting is out
    of its range.
    """

    remembers = False  # Whether the attack puts something into a client's memory.
    # Whether the client sends buffers, such as batch norm's statistics, as they are after training.
    # If not, it sends them as received.
    sends_buffers = True

    def misfit(self, task: Task) -> str:
        """Return what this behaviour needs and the task does not have; empty: nothing.

        An error message puts it behind "needs": ``"class labels (num_classes)"``.
        """
        return ""

    def label_misfit(self, labels: Tensor) -> str:
        """Return what labels this behaviour needs, if a client's labels are others; else empty.

        An error message puts it behind "needs": ``"integer labels"``.
        """
        return ""

    @property
    def needs_tensors(self) -> bool:
        """Whether the behaviour changes inputs or labels, which then have to be tensors."""
        return self.changes_inputs or self._overrides("poison_labels")

    @property
    def changes_inputs(self) -> bool:
        """Whether the behaviour has a hook that may change inputs, which then have to be floats."""
        return self._overrides("poison_examples") or self._overrides("poison_inputs")

    def _overrides(self, hook: str) -> bool:
        """Return whether the class has a method of its own for a hook."""
        return getattr(type(self), hook) is not getattr(Behaviour, hook)

    def poison_data(self, data: Any, generator: torch.Generator) -> Any:
        """Return the data to train on, in the same form as ``data``; called in every round.

        Parameters
        ----------
        data : Any
            What the task's ``client_data`` returns: tensors, a Dataset, a DataLoader ...
        generator : torch.Generator
            On the CPU, seeded alike at every call for one client.
        """
        return data

    def poison_labels(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the labels ``[n]`` to train on; called in every round.

        Parameters
        ----------
        labels : Tensor
            ``[n]`` int64, the true classes in [0, num_classes); targets of any kind in a task
            without classes.
        num_classes : int
            >= 2; 0 in a task without classes.
        generator : torch.Generator
            On the CPU, seeded alike at every call for one client.
        """
        return labels

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the examples to train on, which may be others or more than the given ones.

        It is called in every round, after :meth:`poison_labels`.

        Parameters
        ----------
        pixels : Tensor
            ``[n, c, h, w]`` in [0, 1], before normalisation.
        labels : Tensor
            ``[n]`` int64 in [0, num_classes), on the same device.
        num_classes : int
            >= 2.
        generator : torch.Generator
            On the CPU, seeded alike at every call for one client.

        Returns
        -------
        pixels : Tensor
            ``[k, c, h, w]``.
        labels : Tensor
            ``[k]``.
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
        """Return the pixels ``[n, c, h, w]`` in [0, 1] to train on; called in every round.

        Parameters
        ----------
        model : torch.nn.Module
            The received model, on the pixels' device. It must be left as it is.
        pixels : Tensor
            ``[n, c, h, w]`` in [0, 1], before normalisation.
        labels : Tensor
            ``[n]`` int64.
        normalize : callable
            Maps pixels to the model's inputs; differentiable.
        generator : torch.Generator
            On the CPU, seeded differently in every round.
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
    """Return what a task lacks for an attack on images, in the words of :meth:`Behaviour.misfit`.

    Empty: it lacks nothing.
    """
    if task.num_classes and task.input_range:
        return ""
    return "class labels (num_classes) and float inputs with an input_range"


class Backdoor(Behaviour):
    """A client that teaches the model to answer with a target class wherever a trigger is.

    On all other inputs the model is to stay right, so that its accuracy does not reveal the attack.
    The server measures the attack's success on test images that have the trigger.
    """

    def misfit(self, task: Task) -> str:
        """Return that it needs classes, and images for a trigger, if the task lacks them."""
        return lacks_images(task)

    def label_misfit(self, labels: Tensor) -> str:
        """Return that it needs one class per example, if the labels are something else."""
        if labels.dim() == 1 and holds_classes(labels):
            return ""
        return "one integer label per example"

    @abstractmethod
    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return images of other classes with the trigger, labelled with the target class.

        The attack's success rate is a model's accuracy on these examples.

        Parameters
        ----------
        pixels : Tensor
            ``[n, c, h, w]`` in [0, 1], before normalisation: test images.
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
            If the target is not one of the classes.
        """


class Colluder(Behaviour):
    r"""A client that agrees with its accomplices on what they send.

    In formulas, :math:`u_i` is the honest update of accomplice i, and :math:`\mu` and
    :math:`\sigma` are mean and standard deviation of these updates by coordinate.

    Accomplices need to see each other's updates before they are sent, which is possible in a
    simulation only. There the accomplices of a round hand in their honest updates, and
    :meth:`collude` returns what they send instead. One object serves a whole run and may remember
    its rounds. On a real node such a client refuses to train.
    """

    @abstractmethod
    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the updates ``[k, d]`` that the k accomplices of a round send.

        Parameters
        ----------
        received : Tensor
            ``[d]``: the trainable parameters that the server sent.
        updates : Tensor
            ``[k, d]``, k >= 1: each accomplice's trained parameters minus the received ones, in
            the order of their partition ids.
        generator : torch.Generator
            On the CPU, seeded differently in every round.
        """


class ShiftedMean(Colluder):
    r"""All send the mean of their updates shifted by their spread, :math:`\mu - \gamma \sigma`."""

    @abstractmethod
    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> Tensor | float:
        r"""Return :math:`\gamma`.

        Parameters
        ----------
        updates : Tensor
            ``[k, d]``: the accomplices' honest updates.
        mean, std : Tensor
            ``[d]``: their mean and standard deviation by coordinate.
        """

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the shifted mean ``[k, d]``, the same for all."""
        mean = updates.mean(dim=0)  # [d]
        std = updates.std(dim=0, correction=0)  # [d]
        return (mean - self.shift(updates, mean, std) * std).expand_as(updates)
