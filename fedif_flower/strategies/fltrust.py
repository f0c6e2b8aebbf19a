"""FLTrust [Cao et al., 2021]: weights from agreement with an update that the server trains."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fedif_flower.aggregators import fltrust_coefficients
from fedif_flower.client.training import train_local, train_task
from fedif_flower.errors import ConfigError, require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.setup import BaseArguments, require_kind, with_names_of
from fedif_flower.tasks.batches import tensor_pair
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import array_shapes, copy_module, tied_names, trainable_names
from fedif_flower.tasks.structures import as_tensors, describe, to_device
from fedif_flower.tasks.task import Data, Task
from fedif_flower.valuation import Validation
from fedif_flower.valuation.label_noise import ForwardCorrected, is_noise

logger = logging.getLogger(__name__)


class RootTraining:
    """The server's own training on its root data, done as a client trains on its data.

    Parameters
    ----------
    model : torch.nn.Module
        The model that the server trains; it is copied.
    inputs, labels : Tensor
        The root data, as the model takes them: ``[n, ...]`` and ``[n]``. With a ``task``,
        ``inputs`` may be data of any kind, and ``labels`` ``None``.
    task : Task, optional
        The task whose loss the server trains with. Default: cross-entropy. The task's
        ``transform`` is not applied: if it has one, pass ``task.transformed(data)``.
    training : TrainingConfig, optional
        Epochs, batch size, learning rate and momentum. Default: ``TrainingConfig()``.

    Attributes
    ----------
    parameter_names : list of str
        The names of the model's trainable parameters.
    tied_names : dict of str to str
        From the second name of an array of the model (tied weights) to its first name.

    Raises
    ------
    ConfigError
        If ``model`` is no module, or if the data are no tensors and there is no task.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Data,
        labels: Tensor | None = None,
        *,
        task: Task | None = None,
        training: TrainingConfig | None = None,
    ) -> None:
        require(isinstance(model, nn.Module), "model", model, "a Module")
        self.model = copy_module(model)
        self.parameter_names = trainable_names(model)
        self.tied_names = tied_names(model)
        self.training = training or TrainingConfig()
        self._task = task
        root_data = as_tensors(inputs if labels is None else (inputs, labels))
        pair = tensor_pair(root_data)
        if pair is None and task is None:
            raise ConfigError(
                f"root data are {describe(root_data)}; without a task they are tensors"
            )
        self._data: Any = pair or root_data

    def __repr__(self) -> str:
        """Return the class with the model's class, without the data."""
        return f"RootTraining({type(self.model).__name__})"

    def to(self, device: torch.device) -> None:
        """Move the model and the data to a device."""
        self.model.to(device)
        self._data = to_device(self._data, device)

    def update(
        self, params: Tensor, buffers: Mapping[str, Tensor], generator: torch.Generator
    ) -> Tensor:
        """Train from a model, and return the update ``[d]`` that this leads to.

        Parameters
        ----------
        params : Tensor
            ``[d]``: the trainable parameters to begin with.
        buffers : mapping of str to Tensor
            The model's other arrays, by name.
        generator : torch.Generator
            Draws the batches.
        """
        named = dict(self.model.named_parameters())
        trained = [named[name] for name in self.parameter_names]
        start = params.to(trained[0].dtype)
        # A copy, since the parameters become views of the vector, and training writes into them.
        nn.utils.vector_to_parameters(start.clone(), trained)
        state = self.model.state_dict()
        with torch.no_grad():
            for name, value in buffers.items():
                state[name].copy_(value)
        if self._task is None:
            inputs, labels = self._data
            train_local(self.model, inputs, labels, self.training, generator)
        else:
            train_task(self._task, self.model, self._data, self.training, generator)
        return nn.utils.parameters_to_vector(trained).detach().to(params) - start.to(params)


def root_training(
    model: nn.Module,
    root_data: Data,
    task: Task,
    training: TrainingConfig,
    validation: Validation,
) -> RootTraining:
    """Return the RootTraining of a run, with a loss that is corrected for wrong labels.

    The root data are the held-out set of ``validation``, so that its label noise, if some was
    found, is the root data's as well. A task with a ``train`` function of its own has no loss that
    could be corrected: the log says so.

    Parameters
    ----------
    model : torch.nn.Module
        The model that the server trains.
    root_data : Data
        The root data.
    task : Task
        The run's task.
    training : TrainingConfig
        How the server trains.
    validation : Validation
        Knows the label noise of the held-out set.
    """
    if is_noise(validation.noise) and not isinstance(task.loss, ForwardCorrected):
        if task.train is None:
            task = replace(task, loss=ForwardCorrected(task.pair_loss, validation.noise))
        else:
            logger.warning(
                "FLTrust's own update is not corrected for wrong held-out labels: task %r trains "
                "by a function of its own",
                task.name,
            )
    return RootTraining(model, root_data, task=task, training=training)


class FLTrust(ScreenedStrategy):
    """FLTrust: weigh by agreement with an update that the server trains on its own data.

    Paper: Cao et al., *FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping*,
    NDSS 2021. Formula: :func:`~fedif_flower.aggregators.fltrust.fltrust_coefficients`. If no
    client is trusted, the model stays as it is. Buffers are averaged by trust, since their changes
    are not brought to the server's length.

    Parameters
    ----------
    root : RootTraining
        The server's own training: its model, root data and loss.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    made_of = MappingProxyType({"root": root_training})
    sets_lengths = True  # Its weights bring each update to the length of the server's own.

    def __init__(self, root: RootTraining, **base: Unpack[BaseArguments]) -> None:
        require_kind(self, "root", root, RootTraining)
        super().__init__(**with_names_of(root, base))
        self.root = root
        self.root.to(self.device)

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the arrays of the model that the server trains, by name."""
        return array_shapes(self.root.model)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]``; a client's trust is both its score and its weight score."""
        generator = torch_generator("root-training", self.seed, updates.server_round)
        server_update = self.root.update(updates.global_params, updates.named_buffers, generator)
        coefficients, trust = fltrust_coefficients(updates.client_updates, server_update)
        trust = trust.cpu()
        # A stage may shorten updates. The result has to have the server's length all the same, so
        # the weights are divided by the factors with which they will be multiplied.
        shortening = updates.shortening
        weights = torch.where(shortening > 0, coefficients.cpu() / shortening, 0.0)  # [m]
        trust_shares = trust / trust.sum().clamp_min(1e-300)  # [m]
        lengths = updates.squared_norms.cpu().sqrt() * shortening
        # Updates without trust have a rescaling, too: the one to the server's length. It tells how
        # long they would have been.
        factors = float(server_update.norm()) / lengths.clamp_min(1e-300)
        to_server_length = torch.where(lengths > 0, factors, 1.0)
        rescaling = torch.where(weights > 0, weights / trust_shares, to_server_length)
        return Aggregation(weights, scores=trust, weight_scores=trust, rescaling=rescaling)
