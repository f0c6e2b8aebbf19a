"""DeepSight: cluster models by output layer and predictions; leave out suspicious clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedif_flower.aggregators.clipping import bounded_mean, length_factors
from fedif_flower.aggregators.flame import cosine_distances, density_clusters, labels_by_values
from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ConfigError, require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import Setting
from fedif_flower.tasks.batches import read_batches
from fedif_flower.tasks.modules import (
    array_shapes,
    copy_module,
    module_mode,
    output_layer,
    seeded_randomness,
    tied_names,
    trainable_names,
    trainable_parameters,
)
from fedif_flower.tasks.structures import describe
from fedif_flower.tasks.task import Data

_LEAST_FACTOR = 0.01  # The 0.01 in the formula of `is_suspicious`.
_MOST_LOG_RATIO = 60.0  # Larger log ratios of probabilities count as this: exp stays finite.
_AT_ONCE = 500  # Inputs in one forward pass.


@dataclass(eq=False)
class DeepSight(CheckedFields):
    r"""Average the clusters of updates in which few look as if trained on only a few classes.

    Formula: :func:`output_energies`, :func:`is_suspicious`, :func:`probability_ratios`,
    :func:`deep_sight_clusters` and :func:`deep_sight_coefficients`, in this order.

    Parameters
    ----------
    model : torch.nn.Module
        A model like the clients'. Its output layer is its last trainable parameter of shape
        ``[classes, features]``, with the bias that follows it, if any. A copy of the model
        predicts the classes of random inputs with each client's parameters.
    root_data : Tensor, tuple, Dataset or iterable of batches
        Inputs of the model's kind. Only their shape, and the range of values in the first batch,
        are used: the random inputs are drawn uniformly from this range.
    samples : int
        Random inputs in each draw, >= 1.
    draws : int
        Number of draws of random inputs, >= 1.
    tolerated : float
        A cluster is left out if at least this share of it, in (0, 1], is suspicious.

    Raises
    ------
    ConfigError
        If a setting is out of range; if the model has no output layer, or one with a single
        output, or one whose outputs are not as many as the model returns; or if the inputs are no
        tensor of floats.

    References
    ----------
    Rieger, Nguyen, Miettinen and Sadeghi, "DeepSight: Mitigating Backdoor Attacks in Federated
    Learning Through Deep Model Inspection", NDSS 2022.
    """

    gives_weights = True
    sets_lengths = True

    model: nn.Module = field(repr=False)
    root_data: Data = field(repr=False)
    samples: Annotated[int, Setting("random inputs of a draw", ge=1)] = 2000
    draws: Annotated[int, Setting("draws of random inputs", ge=1)] = 3
    tolerated: Annotated[
        float, Setting("a cluster is left out where this share of it is suspicious", gt=0, le=1)
    ] = 1 / 3

    def __post_init__(self) -> None:
        """Check settings, model and inputs; find the output layer and the inputs' range."""
        super().__post_init__()
        self._model = copy_module(self.model)
        self.parameter_names = trainable_names(self.model)
        self.tied_names = tied_names(self.model)
        self.own_shapes = array_shapes(self.model)
        self._layer = output_layer(self.model, "DeepSight")
        require(self._layer.shape[0] > 1, "model", "of one output", "classes, for DeepSight")
        self._shape, self._low, self._high = _kind_of_input(self.root_data)
        self._require_outputs()

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]`` of the updates that are kept, 0 for the others."""
        client_updates = updates.client_updates  # [m, d]
        weight_updates = client_updates[:, self._layer.weight]
        layer_weights = weight_updates.view(-1, *self._layer.shape)  # [m, classes, features]
        if self._layer.bias is None:
            # Without a bias, the directions of the layer's weights are compared instead.
            biases = layer_weights.new_zeros(layer_weights.shape[:2])  # [m, classes]
            directions = layer_weights.flatten(1)
        else:
            biases = client_updates[:, self._layer.bias]
            directions = biases
        energies = output_energies(layer_weights, biases)
        ratios = self._ratios(updates).cpu()
        clusters = deep_sight_clusters(cosine_distances(directions), energies, ratios)
        norms = updates.squared_norms.double().cpu().sqrt()  # [m]
        suspicious = is_suspicious(energies)
        weights = deep_sight_coefficients(
            clusters, suspicious, norms, self.tolerated, updates.shortening
        )
        rescaling = length_factors(norms, norms.median(), updates.shortening)
        return Aggregation(weights, rescaling=rescaling)

    def _ratios(self, updates: RoundUpdates) -> Tensor:
        """Return each client's :func:`probability_ratios` in each draw, [draws, m, classes]."""
        params = updates.client_params()  # [m, d]
        buffers = updates.named_client_buffers()  # [m, ...] each
        ratios = []
        for draw in range(self.draws):
            generator = updates.generator(f"deep-sight-{draw}")
            drawn = torch.rand((self.samples, *self._shape), generator=generator)
            inputs = (self._low + (self._high - self._low) * drawn).to(params)
            before = self._log_probabilities(updates.global_params, updates.named_buffers, inputs)
            for k, client_params in enumerate(params):
                client_buffers = {name: values[k] for name, values in buffers.items()}
                after = self._log_probabilities(client_params, client_buffers, inputs)
                ratios.append(probability_ratios(after, before))
        return torch.stack(ratios).view(self.draws, len(params), -1)

    @torch.no_grad()
    def _require_outputs(self) -> None:
        """Raise ConfigError unless the output layer has as many outputs as the model returns."""
        params = parameters_to_vector(trainable_parameters(self.model))
        inputs = torch.full((2, *self._shape), self._low).to(params)
        count = self._log_probabilities(params, self.model.state_dict(), inputs).shape[1]
        outputs = self._layer.shape[0]
        words = f"a model of {count} outputs whose head is registered last, for DeepSight"
        require(outputs == count, "model", f"{self._layer.name} of {outputs} outputs", words)

    @torch.no_grad()
    def _log_probabilities(
        self, params: Tensor, buffers: Mapping[str, Tensor], inputs: Tensor
    ) -> Tensor:
        """Return the log probabilities that a model predicts, ``[n, classes]``, float64."""
        model = self._model.to(params)
        vector_to_parameters(params.clone(), trainable_parameters(model))
        model.load_state_dict(dict(buffers), strict=False)
        # A model that is random even in evaluation draws the same numbers for every client.
        with module_mode(model, training=False), seeded_randomness(0, inputs.device):
            logits = [model(part) for part in torch.split(inputs, _AT_ONCE)]
        return torch.cat(logits).double().log_softmax(dim=1)


def _kind_of_input(data: Data) -> tuple[torch.Size, float, float]:
    """Return the shape of one input, and the least and the greatest value in the first batch."""
    inputs = next(iter(read_batches(data, None, _AT_ONCE)))
    if isinstance(inputs, tuple | list):
        inputs = inputs[0]
    if not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
        raise ConfigError(f"DeepSight draws random inputs like {describe(inputs)}; allowed: floats")
    return inputs.shape[1:], float(inputs.min()), float(inputs.max())


def output_energies(weights: Tensor, biases: Tensor) -> Tensor:
    r"""Return how an update's energy is spread over the output layer's neurons, one per class.

    .. math:: e_{ic} = |\Delta b_{ic}| + \sum_h |\Delta W_{ich}|, \qquad
              C_{ic} = \frac{e_{ic}^2}{\sum_j e_{ij}^2}

    for client i, class c and feature h.

    Parameters
    ----------
    weights : Tensor
        ``[m, classes, features]``: the updates :math:`\Delta W_i` of the layer's weights.
    biases : Tensor
        ``[m, classes]``: the updates :math:`\Delta b_i` of its biases.

    Returns
    -------
    Tensor
        C, ``[m, classes]``, float64, on the CPU. A row sums to 1; it is 0 where nothing changed.
    """
    energies = weights.double().abs().sum(dim=2) + biases.double().abs()
    squares = energies.square().cpu()
    sums = squares.sum(dim=1, keepdim=True)
    return torch.where(sums > 0, squares / sums, 0.0)


def is_suspicious(energies: Tensor) -> Tensor:
    r"""Return which updates change only few neurons much, as training on few classes does, [m].

    .. math:: T_i \le \tfrac{1}{2} \operatorname{median}_j T_j, \qquad
              T_i = \#\{c: C_{ic} > \max(0.01, 1 / P) \max_j C_{ij}\}

    with C the ``energies`` ``[m, P]`` of :func:`output_energies` and P the number of classes.
    """
    factor = max(_LEAST_FACTOR, 1 / energies.shape[1])
    exceedings = (energies > factor * energies.amax(dim=1, keepdim=True)).sum(dim=1)
    return exceedings <= exceedings.double().quantile(0.5) / 2


def probability_ratios(client: Tensor, before: Tensor) -> Tensor:
    r"""Return the mean ratio of each class's probability after training to that before (DDifs).

    .. math:: \operatorname{DDif}_c = \operatorname{mean}_n \frac{p_{nc}}{q_{nc}}

    with :math:`p_{nc}` and :math:`q_{nc}` the probability of class c for input n, by the client's
    model and by the model that it received. A ratio counts for at most :math:`e^{60}`, and for 1
    where it is not defined.

    Parameters
    ----------
    client, before : Tensor
        ``[n, classes]``: :math:`\ln p` and :math:`\ln q`.

    Returns
    -------
    Tensor
        ``[classes]``, float64.
    """
    return (client - before).nan_to_num(0.0).clamp_max(_MOST_LOG_RATIO).exp().mean(dim=0)


def deep_sight_clusters(cosines: Tensor, energies: Tensor, ratios: Tensor) -> Tensor:
    r"""Return the cluster of each model, ``[m]``; -1 for a model by itself.

    HDBSCAN, with clusters of at least two models, is applied to the cosine distances of the output
    layer's bias updates, to the energies, and to the ratios of each draw. In each of these
    clusterings the distance between two models is 0 if they share a cluster, and 1 if not. The
    mean of three such distances (by cosines, by energies, and the mean over the draws) is what
    HDBSCAN then clusters once more.

    Parameters
    ----------
    cosines : Tensor
        ``[m, m]``: cosine distances of the output layer's bias updates.
    energies : Tensor
        ``[m, classes]``, of :func:`output_energies`.
    ratios : Tensor
        ``[draws, m, classes]``, of :func:`probability_ratios`.
    """
    apart_by_cosine = ~_same_cluster(density_clusters(cosines, 2))
    apart_by_energy = ~_same_cluster(density_clusters(energies, 2, "euclidean"))
    apart_by_draw = [~_same_cluster(density_clusters(ratio, 2, "euclidean")) for ratio in ratios]
    distances = torch.stack(
        [
            apart_by_cosine.double(),
            apart_by_energy.double(),
            torch.stack(apart_by_draw).double().mean(dim=0),
        ]
    ).mean(dim=0)
    # Many of these distances are equal, and HDBSCAN breaks ties by the order of the rows.
    return labels_by_values(
        energies, lambda places: density_clusters(distances[places][:, places], 2)
    )


def deep_sight_coefficients(
    clusters: Tensor,
    suspicious: Tensor,
    norms: Tensor,
    tolerated: float,
    shortening: Tensor | float = 1.0,
) -> Tensor:
    r"""Return the coefficient ``[m]`` of each update in the step.

    .. math:: a_i = \frac{1}{|A|} \min\left(1, \frac{S}{\lVert u_i \rVert}\right)
              \text{ for } i \in A, \text{ otherwise } 0; \qquad S = \operatorname{median}_i
              \lVert u_i \rVert

    with :math:`u_i` client i's update. A are the models in clusters whose share of suspicious
    models is below ``tolerated``; a model by itself is a cluster of one. If A is empty, the global
    model stays as it is. Of an even number of lengths, S is the lower one of the middle two.

    Parameters
    ----------
    clusters : Tensor
        ``[m]``, integers; -1 for a model by itself.
    suspicious : Tensor
        ``[m]`` bool.
    norms : Tensor
        ``[m]``: the lengths :math:`\lVert u_i \rVert`.
    tolerated : float
        In (0, 1].
    shortening : Tensor or float
        ``[m]``: the factors by which stages shorten the updates as well, see
        :func:`~fedif_flower.aggregators.clipping.length_factors`.
    """
    together = _same_cluster(clusters)  # [m, m]
    shares = (together & suspicious).double().sum(dim=1) / together.sum(dim=1)
    factors = length_factors(norms, norms.median(), shortening)
    return bounded_mean(shares < tolerated, factors)


def _same_cluster(clusters: Tensor) -> Tensor:
    """Return which models share a cluster, ``[m, m]`` bool; an outlier only with itself."""
    same = (clusters[:, None] == clusters) & (clusters >= 0)
    return same | torch.eye(len(clusters), dtype=torch.bool)
