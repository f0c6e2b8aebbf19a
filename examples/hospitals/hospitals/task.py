"""What the hospitals learn, and which patients each of them has.

The data are scikit-learn's breast cancer: 569 patients, 30 measurements of cell nuclei each, and
whether the tumour was benign. The server holds 200 patients, 100 to judge the hospitals and 100
to test the model; the hospitals share the other 369.
"""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from fedif_flower import ClientSite, Site, Task

HELD_OUT = 200
PATIENTS = (100, 80, 60, 50, 40, 24, 15)  # of the hospitals that have patients of their own
NOISY, UNIT_ERROR, COPY, ORIGINAL, IDLE = 3, 5, 7, 2, 4
MEAN_AREA = 3  # the column that hospital UNIT_ERROR has in square micrometres times 100

NUM_HOSPITALS = len(PATIENTS) + 1


@cache
def patients() -> tuple[Tensor, Tensor]:
    """Return measurements ``[569, 30]`` and diagnoses ``[569]``, in an order of their own."""
    measured, benign = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(benign), generator=torch.Generator().manual_seed(0))
    return torch.tensor(measured, dtype=torch.float32)[order], torch.tensor(benign)[order]


def standardized(measured: Tensor) -> Tensor:
    """Return measurements on the scale that the hospitals agreed on: the held-out patients'."""
    agreed = patients()[0][:HELD_OUT]
    return (measured - agreed.mean(0)) / agreed.std(0)


def held_out(start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Return some of the server's patients."""
    measured, benign = patients()
    return standardized(measured[start:stop]), benign[start:stop]


def client_data(site: ClientSite) -> tuple[Tensor, Tensor]:
    """Return a hospital's patients as it recorded them."""
    hospital = ORIGINAL if site.partition_id == COPY else site.partition_id
    start = HELD_OUT + sum(PATIENTS[:hospital])
    own = slice(start, start + PATIENTS[hospital])
    measured, benign = patients()
    recorded = measured[own].clone()
    if hospital == UNIT_ERROR:
        recorded[:, MEAN_AREA] *= 100
    inputs = standardized(recorded)
    if hospital == NOISY:
        inputs += torch.randn_like(inputs)
    return inputs, benign[own]


def model() -> nn.Module:
    """Return the classifier."""
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


task = Task(
    name="hospitals",
    model=model,
    client_data=client_data,
    validation_data=lambda site: held_out(0, HELD_OUT // 2),
    test_data=lambda site: held_out(HELD_OUT // 2, HELD_OUT),
    num_classes=2,
)
