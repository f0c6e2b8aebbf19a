"""AFedSV as its authors run it: the baseline that a faster valuation must be measured against.

One coalition at a time: average the members' state dicts, ``load_state_dict``, and one pass over
a ``DataLoader`` that decodes, converts and normalises every validation image again; gradients are
on, no coalition is remembered. Nothing in the package uses this file.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from fedif_studies.benchmarks.replies import MEAN, STD, Images

State = dict[str, Tensor]
_BATCH_SIZE = 128


class TransformedImages(Dataset[tuple[Tensor, int]]):
    """Images that are transformed one by one whenever they are asked for, as torchvision's are."""

    def __init__(self, images: Images) -> None:
        self._pixels = images.pixels.transpose(0, 2, 3, 1).copy()  # [n, h, w, c]
        self._labels = images.labels
        normalize = transforms.Normalize(MEAN, STD)
        self._transform = transforms.Compose([transforms.ToTensor(), normalize])

    def __len__(self) -> int:
        """Return n."""
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return one image, transformed, with its label."""
        image = Image.fromarray(self._pixels[index].squeeze())
        return self._transform(image), int(self._labels[index])


class NaiveAFedSV:
    """Estimates Shapley values coalition by coalition, and counts what it evaluates.

    Parameters
    ----------
    model : torch.nn.Module
        Loaded with each coalition's mean in turn; it is copied.
    states : sequence of dict
        The clients' state dicts.
    images : Images
        The validation set.
    empty_utility : float
        Accuracy of the global model, which the authors know from the round before.
    """

    def __init__(
        self, model: nn.Module, states: Sequence[State], images: Images, empty_utility: float
    ) -> None:
        self._model = copy.deepcopy(model)
        self._states = states
        self._images = TransformedImages(images)
        self._empty_utility = empty_utility
        self.evaluations = 0

    def values(self, left: Sequence[Sequence[bool]]) -> NDArray[np.float64]:
        """Return the stratified estimate from the drawn coalitions ``left``, one by one."""
        m = len(self._states)
        samples: list[list[list[float]]] = [[[] for _ in range(m)] for _ in range(m)]
        for mask in left:
            inside = self.utility(mask)
            outside = self.utility([not member for member in mask])
            size = sum(mask)
            for client, member in enumerate(mask):
                stratum = size if member else m - size
                samples[client][stratum - 1].append((inside - outside) * (1 if member else -1))
        return np.array(
            [sum(float(np.mean(bucket)) for bucket in own if bucket) / m for own in samples]
        )

    def utility(self, mask: Sequence[bool]) -> float:
        """Return the accuracy of one coalition's mean model."""
        members = [state for state, member in zip(self._states, mask, strict=True) if member]
        if not members:
            return self._empty_utility
        self._model.load_state_dict(_average(members))
        self._model.eval()
        self.evaluations += 1
        return self._pass()

    def _pass(self) -> float:
        loader = DataLoader(self._images, batch_size=_BATCH_SIZE, shuffle=False)
        criterion = nn.CrossEntropyLoss()
        loss, total, correct = 0.0, 0, 0.0
        for images, labels in loader:
            outputs = self._model(images)
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
