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

VALIDATION, HELD_OUT = 100, 200  # The server holds 200 patients; it judges by the first 100.
PATIENTS = (100, 80, 60, 50, 40, 24, 15)  # The numbers of patients of hospitals 0 to 6.
NOISY = 4  # This hospital's instrument adds noise, as large as the differences between patients.
UNIT_ERROR, MEAN_AREA = 5, 3  # Hospital 5 has column 3 in another unit: values 100 times as large.
COPY, ORIGINAL = 7, 2  # Hospital 7 has no patients of its own, but a copy of hospital 2's.


@cache
def patients() -> tuple[Tensor, Tensor]:
    """Return measurements ``[569, 30]`` and diagnoses ``[569]``, in a fixed random order."""
    measured, benign = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(benign), generator=torch.Generator().manual_seed(0))
    return torch.tensor(measured, dtype=torch.float32)[order], torch.tensor(benign)[order]


def standardized(measured: Tensor) -> Tensor:
    """Return measurements on the scale that the hospitals agreed on.

    It is taken from the held-out patients: their mean is 0 and their standard deviation 1.
    """
    agreed = patients()[0][:HELD_OUT]
    return (measured - agreed.mean(0)) / agreed.std(0)


def validation_data(_: Site) -> tuple[Tensor, Tensor]:
    """Return the patients by which the server judges the hospitals."""
    measured, benign = patients()
    return standardized(measured[:VALIDATION]), benign[:VALIDATION]


def test_data(_: Site) -> tuple[Tensor, Tensor]:
    """Return the patients by which the server tests the model."""
    measured, benign = patients()
    return standardized(measured[VALIDATION:HELD_OUT]), benign[VALIDATION:HELD_OUT]


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
    """Return the untrained classifier."""
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


task = Task(
    name="hospitals",
    model=model,
    client_data=client_data,
    validation_data=validation_data,
    test_data=test_data,
    num_classes=2,
)
