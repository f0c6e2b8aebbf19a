"""Strategies that judge updates by where they point: ShapFed, FLTrust, FedAdp, RFA."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor, nn

from fedif_flower.aggregators import FedAdp as FedAdpRule
from fedif_flower.aggregators import fltrust_coefficients, geometric_median_weights
from fedif_flower.client.training import TrainingConfig, train_local
from fedif_flower.errors import ConfigError
from fedif_flower.messages.layout import trainable_names
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.seeding import torch_generator
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.contribution import ContributionStrategy
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.state import Stateful
from fedif_flower.valuation.scores import Scores
from fedif_flower.valuation.shapfed import shapfed_contributions


class ShapFedValuation:
    """Agreement of each client's last layer with the aggregate's, class by class.

    Parameters
    ----------
    model : torch.nn.Module
        Tells where the last layer lies: its last trainable parameter of two dimensions,
        ``[classes, features]``.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameter_names = trainable_names(model)
        named, start = dict(model.named_parameters()), 0
        self._layer: tuple[int, int, int] | None = None
        for name in self.parameter_names:
            if named[name].dim() == 2:
                classes, features = named[name].shape
                self._layer = (start, classes, features)
            start += named[name].numel()
        if self._layer is None:
            raise ConfigError("strategy = 'shapfed': the model has no fully connected layer")

    def prepare(self, params: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Do nothing: there is no validation set to look at."""

    def score(self, updates: RoundUpdates) -> Scores:
        """Return mean cosines ``[m]``, in [-1, 1]."""
        assert self._layer is not None  # checked at construction
        start, classes, features = self._layer
        rows = slice(start, start + classes * features)
        layer = updates.client_updates[:, rows]
        values = shapfed_contributions(
            layer.view(-1, classes, features), updates.num_examples.to(layer.device)
        )
        return Scores(values.cpu())


class ShapFed(ContributionStrategy):
    """ShapFed: smoothed class-wise agreement, negative ones cut off.

    Paper: Tastan et al., *Redefining Contributions: Shapley-Driven Federated Learning*, 2024.

    Parameters
    ----------
    model : torch.nn.Module
        See :class:`ShapFedValuation`.
    gamma : float
        Rate of the smooth update, in (0, 1].
    **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self, model: nn.Module, *, gamma: float = 0.5, **base: Unpack[BaseArguments]
    ) -> None:
        super().__init__(ShapFedValuation(model), gamma=gamma, round_normalization=False, **base)


class FLTrust(ScreenedStrategy):
    """FLTrust: the server trains on data of its own, and trusts updates that agree with its own.

    Paper: Cao et al., *FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping*,
    NDSS 2021. Formula: :func:`~fedif_flower.aggregators.fltrust.fltrust_coefficients`.

    Parameters
    ----------
    model : torch.nn.Module
        What the server trains; it is copied.
    inputs, labels : Tensor
        The server's root data: ``[n, ...]`` and ``[n]``.
    training : TrainingConfig
        How it trains, as a client does.
    **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        *,
        training: TrainingConfig | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        base.setdefault("trainable_keys", trainable_names(model))
        super().__init__(**base)
        self.training = training or TrainingConfig()
        self._model = copy.deepcopy(model).to(self.device)
        self._inputs, self._labels = inputs.to(self.device), labels.to(self.device)

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]``; trust is both score and contribution."""
        server_update = self._train(updates)
        coefficients, trust = fltrust_coefficients(updates.client_updates, server_update)
        return Aggregation(
            weights=coefficients.cpu(), scores=trust.cpu(), contributions=trust.cpu()
        )

    def _train(self, updates: RoundUpdates) -> Tensor:
        """Return the server's own update ``[d]`` from the model of this round."""
        named = dict(self._model.named_parameters())
        trained = [named[name] for name in trainable_names(self._model)]
        # A copy: the parameters become views of it, and training writes into them.
        nn.utils.vector_to_parameters(updates.global_params.clone(), trained)
        state = self._model.state_dict()
        with torch.no_grad():
            for name, value in updates.named_buffers.items():
                state[name].copy_(value)
        generator = torch_generator("root-training", self.seed, updates.server_round)
        train_local(self._model, self._inputs, self._labels, self.training, generator)
        return nn.utils.parameters_to_vector(trained).detach() - updates.global_params


class FedAdp(ScreenedStrategy):
    """FedAdp: weights by the running mean of each client's angle to the global update.

    Paper: Wu and Wang, *Fast-Convergent Federated Learning with Adaptive Weighting*, 2021.

    Parameters
    ----------
    alpha : float
        Steepness of the weights, > 0.
    **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(self, *, alpha: float = 5.0, **base: Unpack[BaseArguments]) -> None:
        super().__init__(**base)
        self.rule = FedAdpRule(alpha)

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds: the angles too."""
        return super().stateful() | {"rule": self.rule}

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]``; a smaller mean angle is the larger contribution."""
        weights = self.rule.weights(
            updates.client_ids, updates.client_updates, updates.num_examples
        )
        angles = [-self.rule.angles[client_id] for client_id in updates.client_ids]
        return Aggregation(weights=weights, contributions=torch.tensor(angles))


class RFA(ScreenedStrategy):
    """RFA: the geometric median of the clients' models.

    Paper: Pillutla et al., *Robust Aggregation for Federated Learning*, 2022.

    Parameters
    ----------
    iterations : int
        Steps of the smoothed Weiszfeld algorithm, >= 1.
    nu : float
        Smoothing of distances, > 0.
    **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self, *, iterations: int = 3, nu: float = 1e-6, **base: Unpack[BaseArguments]
    ) -> None:
        super().__init__(**base)
        self.iterations = iterations
        self.nu = nu

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return weights ``[m]`` whose mean is the median, starting from FedAvg's."""
        shares = updates.num_examples / updates.num_examples.sum()
        weights = geometric_median_weights(
            updates.client_updates, shares, iterations=self.iterations, nu=self.nu
        )
        return Aggregation(weights=weights.cpu())
