"""Members with the same data are found by sums of what is their own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedif_studies.twins import OwnParts


def step_of(*rows):
    updates = torch.tensor(rows)
    return SimpleNamespace(
        updates=SimpleNamespace(client_updates=updates, client_ids=range(len(rows))),
        num_members=len(rows),
    )


def test_own_parts_by_hand():
    # Units (1, 0), (0, 1), (0, 1); less their mean (1/3, 2/3): (2, -2) / 3 and twice (-1, 1) / 3.
    watcher = OwnParts()
    watcher.take(step_of([5.0, 0.0], [0.0, 2.0], [0.0, 0.1]))
    assert watcher.values.tolist() == pytest.approx([-1.0, 1.0, 1.0])


def test_noise_that_differs_from_round_to_round_averages_out():
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(6, 200, generator=generator)
    data[1] = data[0]
    watcher, likeness = OwnParts(), []
    for _ in range(40):
        noisy = data + 0.5 * torch.randn(data.shape, generator=generator)
        watcher.take(step_of(*noisy.tolist()))
        likeness.append(watcher.values)
    assert likeness[0][:2].max() < 0.9 < 0.98 < likeness[-1][:2].min()
    assert likeness[-1][2:].max() < 0.5
