from __future__ import annotations

import pytest
import torch

from fedif_flower.aggregators import align_ins_coefficients
from fedif_flower.aggregators.align_ins import sign_alignment


def test_the_share_of_the_largest_coordinates_with_the_principal_sign():
    updates = torch.tensor([[5.0, 4.0, -0.1, 0.1], [3.0, 1.0, 0.2, -0.1], [-6.0, 2.0, 0.1, 0.3]])
    # The principal signs are [+, +, +, +]; half of the coordinates count.
    assert sign_alignment(updates, 0.5).tolist() == [1, 1, 0.5]
    assert sign_alignment(updates, 1.0).tolist() == [0.75, 0.75, 0.75]
    assert sign_alignment(updates, 0.01).tolist() == [1, 1, 0]  # one at least


def test_directions_that_stand_out_are_left_out_and_lengths_bounded():
    # Cosines with [1, 0]: 1, 1, 1, -1; the median is 1, the deviation sqrt(3)/2: z = 2 / 0.866.
    updates = torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0], [-2.0, 0.0]])
    coefficients = align_ins_coefficients(updates, torch.tensor([3.0, 0.0]))
    # The median of the lengths 1, 2, 6 is 2.
    assert coefficients.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 9, 0])


def test_signs_that_stand_out_are_left_out():
    # All cosines with the model are 0; the last one's signs disagree with the principal ones.
    updates = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, -1.0, -1.0]])
    coefficients = align_ins_coefficients(updates, torch.tensor([1.0, 0.0, 0.0]), share=0.7)
    assert coefficients.tolist() == pytest.approx([1 / 3] * 3 + [0])


def test_equal_updates_all_count_and_a_wide_threshold_keeps_all():
    same = torch.ones(3, 2)
    assert align_ins_coefficients(same, torch.ones(2)).tolist() == pytest.approx([1 / 3] * 3)
    rounded = torch.tensor([[0.1], [0.7], [1.1]]) * torch.tensor([1.0, 0.3, -0.9])
    assert (align_ins_coefficients(rounded, torch.tensor([0.2, 1.0, 0.0])) > 0).all()
    updates = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    wide = align_ins_coefficients(updates, torch.ones(2), threshold=10.0)
    assert wide.tolist() == [0.5, 0.5]


def test_zero_updates_and_a_zero_model_have_no_direction():
    zeros = torch.zeros(3, 2)
    assert align_ins_coefficients(zeros, torch.zeros(2)).tolist() == pytest.approx([1 / 3] * 3)
