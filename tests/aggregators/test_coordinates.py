from __future__ import annotations

import torch

from fedif_flower.aggregators import coordinate_median, trimmed_mean

UPDATES = torch.tensor([[1.0, 9.0], [2.0, -3.0], [7.0, 0.0], [100.0, 2.0]])


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert coordinate_median(UPDATES).tolist() == [4.5, 1]
    assert coordinate_median(UPDATES[:3]).tolist() == [2, 0]
    assert coordinate_median(UPDATES[:1]).tolist() == [1, 9]
    assert torch.equal(coordinate_median(UPDATES[:3]), UPDATES[:3].median(dim=0).values)


def test_the_least_and_the_largest_are_left_out():
    assert trimmed_mean(UPDATES, 1).tolist() == [4.5, 1]
    assert trimmed_mean(UPDATES, 0).tolist() == [27.5, 2]
    assert trimmed_mean(torch.tensor([[1.0], [2.0], [6.0], [7.0], [-90.0]]), 1).tolist() == [3]
