"""AFedSV's evaluation loop as its authors run it, and a round on which valuations are compared.

For each coalition, the loop averages the members' state dicts, calls ``load_state_dict``, and makes
a pass over a ``DataLoader`` that decodes, converts and normalises every validation image again. It
does not disable gradients, and remembers no coalition. Images and replies are random, since their
contents do not change the costs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.seeding import numpy_generator, torch_generator
from fedif_flower.tasks.data.datasets import Normalization, to_pixels
from fedif_flower.tasks.models import build_model
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation import Validation
from tests.rounds import a_round

NUM_CLIENTS = 10
CLASSES = 10
MEAN = 0.5
STD = 0.5
_LENGTH = 1e-3  # The standard deviation of an update in each parameter.
State = dict[str, Tensor]


class Images(Dataset[tuple[Tensor, int]]):
    """Images that are transformed one by one at each access, as torchvision's data sets do."""

    def __init__(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self.pixels = pixels  # [n, c, h, w]
        self.labels = labels  # [n]
        normalize = transforms.Normalize(MEAN, STD)
        self._transform = transforms.Compose([transforms.ToTensor(), normalize])

    def __len__(self) -> int:
        """Return n, the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return one image, transformed, with its label."""
        image = Image.fromarray(self.pixels[index].transpose(1, 2, 0).squeeze())
        return self._transform(image), int(self.labels[index])


@dataclass(frozen=True)
class JudgedRound:
    """A model, ten clients' replies, and the validation images on which they are valued."""

    model: nn.Module
    images: Images
    layout: ParameterLayout
    updates: RoundUpdates

    def validation(self) -> Validation:
        """Return the images as the held-out set of this package's valuations."""
        channels = self.images.pixels.shape[1]
        normalize = Normalization((MEAN,) * channels, (STD,) * channels)
        inputs = normalize(to_pixels(self.images.pixels, 255))
        return Validation(self.model, inputs, torch.from_numpy(self.images.labels), device="cpu")

    def client_states(self) -> list[State]:
        """Return the clients' models as state dicts."""
        all_buffers = self.updates.global_buffers + self.updates.buffer_updates
        states = []
        for params, buffers in zip(self.updates.client_params(), all_buffers, strict=True):
            vectors = ModelVectors(params, buffers, self.updates.model.counters)
            states.append(dict(self.layout.to_arrays(vectors).to_torch_state_dict()))
        return states


def build_round(model_name: str, shape: tuple[int, int, int], num_validation: int) -> JudgedRound:
    """Return a model, ten random updates of it, and ``num_validation`` random images."""
    image_generator = numpy_generator("benchmark-images", 0, *shape)
    pixels = image_generator.integers(0, 256, (num_validation, *shape), dtype=np.uint8)
    images = Images(pixels, image_generator.integers(CLASSES, size=num_validation))
    model = build_model(model_name, shape, CLASSES, seed=0)
    layout = ParameterLayout.from_arrays(model_arrays(model), trainable_names(model))
    vectors = layout.to_vectors(model_arrays(model))
    generator = torch_generator("benchmark-replies", 0)
    updates = _LENGTH * torch.randn(NUM_CLIENTS, len(vectors.params), generator=generator)
    round_updates = a_round(
        updates,
        num_examples=torch.full((NUM_CLIENTS,), 200.0, dtype=torch.float64),
        model=vectors,
        buffer_updates=torch.zeros(NUM_CLIENTS, len(vectors.buffers)),
        names=layout,
    )
    return JudgedRound(model, images, layout, round_updates)


def judge(judged: JudgedRound, coalitions: Sequence[Sequence[bool]]) -> int:
    """Evaluate coalitions and their complements one by one; return the number of passes."""
    model = copy.deepcopy(judged.model)
    states = judged.client_states()
    passes = 0
    for mask in coalitions:
        complement = [not is_in for is_in in mask]
        for chosen in (mask, complement):
            members = [state for state, is_in in zip(states, chosen, strict=True) if is_in]
            if members:  # The empty coalition is the global model, known from the round before.
                model.load_state_dict(_average(members))
                _accuracy(model.eval(), judged.images)
                passes += 1
    return passes


def _accuracy(model: nn.Module, images: Images) -> float:
    criterion = nn.CrossEntropyLoss()
    loss = 0.0  # Not needed, but the authors' loop computes it, too, which is part of its cost.
    total = 0
    correct = 0.0
    for inputs, labels in DataLoader(images, batch_size=128, shuffle=False):
        outputs = model(inputs)
        loss += criterion(outputs, labels).item()
        predicted = torch.max(outputs, 1).indices
        correct += torch.sum(torch.eq(predicted, labels)).item()
        total += len(labels)
    return correct / total


def _average(states: Sequence[State]) -> State:
    mean = copy.deepcopy(states[0])
    for name in mean:
        for state in states[1:]:
            mean[name] = mean[name] + state[name]
        mean[name] = torch.div(mean[name], len(states))
    return mean
