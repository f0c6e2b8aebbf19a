"""A round for valuations to judge: one global model, ten clients' replies, a validation set.

The replies come from real training: the global model learns for a few epochs, then each client
goes on from it with its own images, half of the clients with most of their labels flipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedif_flower.attacks.label_noise import flip_labels
from fedif_flower.client.training import train_local
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.seeding import numpy_generator, torch_generator
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.data import Normalization, load_dataset, to_pixels
from fedif_flower.tasks.models import build_model
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation import Validation

NUM_CLIENTS = 10
CLASSES = 10
_PER_CLIENT = 200
_GLOBAL_EXAMPLES = 2000
_FLIPPED = 0.75
_SIGNAL = 0.1
_TRAINING = TrainingConfig(local_epochs=2, batch_size=16, learning_rate=0.01)


@dataclass(frozen=True)
class Images:
    """Images ``[n, c, h, w]`` (uint8), labels ``[n]``, how to normalise, where they are from."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str

    def tensors(self, chosen: slice) -> tuple[Tensor, Tensor]:
        """Return some of them as a model sees them."""
        pixels = to_pixels(self.pixels[chosen], 255)
        return Normalization(self.mean, self.std)(pixels), torch.from_numpy(self.labels[chosen])


@dataclass(frozen=True)
class Case:
    """A model, its round, and the images that the server judges it on."""

    name: str
    model: nn.Module
    validation_images: Images
    updates: RoundUpdates

    def validation(self) -> Validation:
        """Return what the valuations ask."""
        return Validation(self.model, *self.validation_images.tensors(slice(None)), device="cpu")


def synthetic_images(count: int, shape: tuple[int, int, int]) -> Images:
    """Return images that can be learned: one smooth picture per class, under much noise."""
    generator = numpy_generator("synthetic-images", 0, *shape)
    channels, height, width = shape
    coarse = generator.normal(size=(CLASSES, channels, height // 4, width // 4))
    pictures = coarse.repeat(4, axis=2).repeat(4, axis=3)  # [classes, c, h, w]
    labels = generator.integers(CLASSES, size=count)
    noise = generator.normal(size=(count, *shape))
    pixels = (128 + 40 * (_SIGNAL * pictures[labels] + noise)).clip(0, 255).astype(np.uint8)
    return Images(pixels, labels, (0.5,) * channels, (0.25,) * channels, "synthetic images")


def real_images(data_dir: Path, count: int) -> Images:
    """Return shuffled images of a data set: a folder of classes, or torchvision's Fashion-MNIST."""
    name = "image-folder" if (data_dir / "train").is_dir() else "fashion-mnist"
    compressed = any(data_dir.glob("test/*/*.jpg"))
    dataset = load_dataset(name, data_dir)
    chosen = numpy_generator("benchmark-images", 0).permutation(len(dataset.test))[:count]
    chosen.sort()
    pixels, labels = dataset.test.images[chosen], dataset.test.labels[chosen]
    order = numpy_generator("benchmark-order", 0).permutation(len(labels))
    source = "real images, JPEG" if compressed else "real images"
    return Images(pixels[order], labels[order], dataset.mean, dataset.std, source)


def build_case(
    name: str,
    model_name: str,
    shape: tuple[int, int, int],
    num_validation: int,
    data_dir: Path | None,
) -> Case:
    """Train a global model and ten clients' models from it, on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _build_case(name, model_name, shape, num_validation, data_dir)
    finally:
        torch.set_num_threads(threads)


def _build_case(
    name: str,
    model_name: str,
    shape: tuple[int, int, int],
    num_validation: int,
    data_dir: Path | None,
) -> Case:
    count = num_validation + _GLOBAL_EXAMPLES + NUM_CLIENTS * _PER_CLIENT
    images = real_images(data_dir, count) if data_dir else synthetic_images(count, shape)
    model = build_model(model_name, shape, CLASSES, seed=0)
    inputs, labels = images.tensors(slice(num_validation, num_validation + _GLOBAL_EXAMPLES))
    train_local(model, inputs, labels, _TRAINING, torch_generator("global", 0))
    received = _vectors(model)
    replies = []
    for client in range(NUM_CLIENTS):
        start = num_validation + _GLOBAL_EXAMPLES + client * _PER_CLIENT
        inputs, labels = images.tensors(slice(start, start + _PER_CLIENT))
        generator = torch_generator("client", 0, client)
        if client % 2:
            labels = flip_labels(labels, CLASSES, _FLIPPED, generator)
        local = build_model(model_name, shape, CLASSES, seed=0)
        local.load_state_dict(model.state_dict())
        train_local(local, inputs, labels, _TRAINING, generator)
        replies.append(_vectors(local))
    kept = slice(num_validation)
    held_out = replace(images, pixels=images.pixels[kept], labels=images.labels[kept])
    return Case(name, model, held_out, _round(model, received, replies))


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


def _vectors(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return parameters ``[d]`` and floating-point buffers ``[b]``."""
    named = dict(model.named_parameters())
    params = torch.cat([named[name].detach().flatten() for name in trainable_names(model)])
    buffers = [value.flatten() for value in _floating_buffers(model).values()]
    return params, torch.cat(buffers) if buffers else torch.empty(0)


def _floating_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_buffers() if value.is_floating_point()}


def _round(
    model: nn.Module, received: tuple[Tensor, Tensor], replies: list[tuple[Tensor, Tensor]]
) -> RoundUpdates:
    params, buffers = received
    updates = torch.stack([reply for reply, _ in replies]) - params
    return RoundUpdates(
        server_round=1,
        client_ids=tuple(range(NUM_CLIENTS)),
        num_examples=torch.full((NUM_CLIENTS,), float(_PER_CLIENT), dtype=torch.float64),
        model=ModelVectors(params, buffers),
        client_updates=updates,
        squared_norms=updates.double().square().sum(dim=1),
        buffer_updates=torch.stack([reply for _, reply in replies]) - buffers,
        names=ParameterLayout.from_arrays(model_arrays(model), trainable_names(model)),
    )
