from __future__ import annotations

import math

import pytest
import torch

from fedif_studies.local_methods.mixture import in_higher, on_one_scale

NAN = math.nan


def test_figures_are_put_on_one_scale_column_by_column():
    losses = torch.tensor([[1.0, 4.0, NAN], [2.0, NAN, NAN], [3.0, 2.0, NAN]]).double()
    found = on_one_scale(losses)
    # Who has no figure counts as the least; nobody has any of the third.
    assert found.tolist() == [[0, 1, 0], [0.5, 0, 0], [1, 0, 0]]


def test_an_absurd_figure_does_not_hide_the_differences_of_others():
    losses = torch.tensor([[0.5], [0.6], [2.0], [1e15], [0.4]]).double()
    # At most ten times the median, 6.
    assert on_one_scale(losses)[:, 0].tolist() == pytest.approx(
        [0.1 / 5.6, 0.2 / 5.6, 1.6 / 5.6, 1, 0]
    )


def test_the_higher_component_is_noisy():
    low = torch.tensor([[0.0, 0.1], [0.1, 0.0], [0.05, 0.05], [0.02, 0.08]])
    high = torch.tensor([[0.9, 1.0], [1.0, 0.8]])
    assert in_higher(torch.cat([low, high]).double(), seed=0) == [False] * 4 + [True] * 2
    assert in_higher(torch.full((3, 2), 0.5).double(), seed=0) == [False] * 3
