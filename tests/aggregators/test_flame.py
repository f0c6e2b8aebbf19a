from __future__ import annotations

import pytest
import torch

from fedif_flower.aggregators import flame_coefficients
from fedif_flower.aggregators.flame import cosine_distances, largest_cluster


def test_cosine_distances_by_hand():
    distances = cosine_distances(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [1.0, 1.0]]))
    assert distances[0].tolist() == pytest.approx([0, 1, 2, 1 - 0.5**0.5])
    assert torch.equal(distances, distances.T)
    assert cosine_distances(torch.zeros(2, 3)).tolist() == [[0, 1], [1, 0]]


def test_models_that_point_elsewhere_are_left_out_and_long_updates_shortened():
    params = 0.1 * torch.eye(8)[:7]  # five near [.., 1], all equally far from each other
    params[:5, 7], params[5, 7], params[6, 7] = 1, -1, 0
    norms = torch.tensor([1.0, 2.0, 4.0, 8.0, 3.0, 50.0, 90.0])  # the median is 4
    coefficients, bound = flame_coefficients(params, norms.square())
    assert bound == 4
    assert coefficients.tolist() == pytest.approx([0.2, 0.2, 0.2, 0.1, 0.2, 0, 0])


def test_directions_that_are_equal_but_for_rounding_have_distance_0():
    torch.manual_seed(0)
    lengths = torch.tensor([0.1, 0.3, 0.7, 1.1, 1.3], dtype=torch.float64)[:, None]
    assert not cosine_distances(lengths * torch.randn(300, dtype=torch.float64)).any()


@pytest.mark.parametrize("m", [1, 2])
def test_too_few_for_a_cluster_are_all_admitted(m):
    assert largest_cluster(torch.ones(m, m) - torch.eye(m)).tolist() == [True] * m
