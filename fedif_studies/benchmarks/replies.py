"""A round for valuations to judge: one global model, ten clients' replies, a validation set.

Images and replies are made up: what they hold does not change what it costs to judge them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.seeding import numpy_generator, torch_generator
from fedif_flower.tasks.data import Normalization, to_pixels
from fedif_flower.tasks.models import build_model
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation import Validation

NUM_CLIENTS = 10
CLASSES = 10
_LENGTH = 1e-3  # Of what an update adds to each parameter.
MEAN = STD = 0.5


@dataclass(frozen=True)
class Images:
    """Images ``[n, c, h, w]`` (uint8) and labels ``[n]``."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A model, its round, and the images that the server judges it on."""

    model: nn.Module
    images: Images
    updates: RoundUpdates

    def validation(self) -> Validation:
        """Return what the valuations ask."""
        channels = self.images.pixels.shape[1]
        normalize = Normalization((MEAN,) * channels, (STD,) * channels)
        inputs = normalize(to_pixels(self.images.pixels, 255))
        return Validation(self.model, inputs, torch.from_numpy(self.images.labels), device="cpu")


def build_case(model_name: str, shape: tuple[int, int, int], num_validation: int) -> Case:
    """Return a model, ten updates of it and so many images."""
    drawn = numpy_generator("benchmark-images", 0, *shape)
    pixels = drawn.integers(0, 256, (num_validation, *shape), dtype=np.uint8)
    images = Images(pixels, drawn.integers(CLASSES, size=num_validation))
    model = build_model(model_name, shape, CLASSES, seed=0)
    named, buffers = dict(model.named_parameters()), _floating_buffers(model)
    params = torch.cat([named[name].detach().flatten() for name in trainable_names(model)])
    received = torch.cat([v.flatten() for v in buffers.values()]) if buffers else torch.empty(0)
    generator = torch_generator("benchmark-replies", 0)
    updates = _LENGTH * torch.randn(NUM_CLIENTS, len(params), generator=generator)
    round_updates = RoundUpdates(
        server_round=1,
        client_ids=tuple(range(NUM_CLIENTS)),
        num_examples=torch.full((NUM_CLIENTS,), 200.0, dtype=torch.float64),
        model=ModelVectors(params, received),
        client_updates=updates,
        squared_norms=updates.double().square().sum(dim=1),
        buffer_updates=torch.zeros(NUM_CLIENTS, len(received)),
        names=ParameterLayout.from_arrays(model_arrays(model), trainable_names(model)),
    )
    return Case(model, images, round_updates)


def client_states(case: Case) -> list[dict[str, Tensor]]:
    """Return the clients' models as state dicts, for those who load them one by one."""
    states = []
    params = case.updates.client_params()
    buffers = case.updates.named_client_buffers()
    for client in range(NUM_CLIENTS):
        state = {name: value.clone() for name, value in case.model.state_dict().items()}
        start = 0
        for name in trainable_names(case.model):
            size = state[name].numel()
            state[name] = params[client, start : start + size].view(state[name].shape).clone()
            start += size
        for name, values in buffers.items():
            state[name] = values[client].clone()
        states.append(state)
    return states


def _floating_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_buffers() if value.is_floating_point()}
