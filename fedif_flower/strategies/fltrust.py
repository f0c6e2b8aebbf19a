"""FLTrust [Cao et al., 2021]: trust in updates that agree with the server's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fedif_flower.aggregators import fltrust_coefficients
from fedif_flower.client.local import train_task
from fedif_flower.client.training import train_local
from fedif_flower.errors import ConfigError
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.streaming import Noted, StreamRule
from fedif_flower.tasks.batches import as_tensors, describe, tensor_pair
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.modules import array_shapes, copy_module, tied_names, trainable_names
from fedif_flower.tasks.task import Data, Task


class FLTrust(ScreenedStrategy):
    """FLTrust: the server trains on data of its own, and trusts updates that agree with its own.

    Paper: Cao et al., *FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping*,
    NDSS 2021. Formula: :func:`~fedif_flower.aggregators.fltrust.fltrust_coefficients`. Where
    nobody is trusted, the model stays as it is.

    Parameters
    ----------
    model : torch.nn.Module
        What the server trains; it is copied.
    inputs, labels : Tensor
        The server's root data: ``[n, ...]`` and ``[n]``. With a ``task``, ``inputs`` may be data
        of any kind, and ``labels`` ``None``.
    task : Task, optional
        Says by which loss the server trains. Default: cross-entropy.
    training : TrainingConfig
        How it trains, as a client does.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Data,
        labels: Tensor | None = None,
        *flower: Any,
        task: Task | None = None,
        training: TrainingConfig | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        base.setdefault("trainable_keys", trainable_names(model))
        base.setdefault("tied_keys", tied_names(model))
        super().__init__(*flower, **base)
        self.training = training or TrainingConfig()
        self._model = copy_module(model).to(self.device)
        self._task = task
        data = as_tensors(inputs if labels is None else (inputs, labels))
        pair = tensor_pair(data)
        if pair is None and task is None:
            raise ConfigError(f"root data are {describe(data)}; without a task they are tensors")
        self._data: Any = data if pair is None else tuple(part.to(self.device) for part in pair)

    can_stream = True

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the model that the server trains."""
        return array_shapes(self._model)

    def stream_rule(self, server_round: int) -> StreamRule:
        """Return trust times rescaling, which the sum of trust divides in the end."""
        vectors, buffers = self.model.vectors, self.model.named_buffers
        server_update = self._train(server_round, vectors.params.to(self.device), buffers).cpu()

        def note(_: AcceptedReply, update: Tensor) -> Noted:
            # The coefficient of one client alone: its share is 1, whatever its trust.
            rescaling, trust = fltrust_coefficients(update[None], server_update)
            coefficient = float(trust * rescaling)
            return Noted((coefficient,), (coefficient, float(trust)))

        return note

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]``; trust is both score and weight score."""
        if updates.notes is not None:
            rescaled, trust = updates.notes.T
            coefficients = rescaled / trust.sum() if bool(trust.sum() > 0) else rescaled
        else:
            server_update = self._train(
                updates.server_round, updates.global_params, updates.named_buffers
            )
            coefficients, trust = fltrust_coefficients(updates.client_updates, server_update)
        return Aggregation(
            weights=coefficients.cpu(), scores=trust.cpu(), weight_scores=trust.cpu()
        )

    def _train(self, server_round: int, params: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
        """Return the server's own update ``[d]`` from the model of this round."""
        named = dict(self._model.named_parameters())
        trained = [named[name] for name in trainable_names(self._model)]
        start = params.to(trained[0].dtype)
        # A copy: the parameters become views of it, and training writes into them.
        nn.utils.vector_to_parameters(start.clone(), trained)
        state = self._model.state_dict()
        with torch.no_grad():
            for name, value in buffers.items():
                state[name].copy_(value)
        generator = torch_generator("root-training", self.seed, server_round)
        if self._task is None:
            inputs, labels = self._data
            train_local(self._model, inputs, labels, self.training, generator)
        else:
            train_task(self._task, self._model, self._data, self.training, generator)
        return nn.utils.parameters_to_vector(trained).detach().to(params) - start.to(params)
