"""What members add to coalitions, from the coalitions' utilities."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.drawn import slopes


def test_slopes_over_all_coalitions_are_banzhaf_values():
    # v(0) = 1, alone 2 and 4, together 9: the first adds 1 or 5, the second 3 or 7.
    masks = all_coalitions(2)
    worth = {(False, False): 1.0, (True, False): 2.0, (False, True): 4.0, (True, True): 9.0}
    utilities = torch.tensor([worth[tuple(row)] for row in masks.tolist()], dtype=torch.float64)
    assert slopes(masks, utilities).tolist() == pytest.approx([3.0, 5.0])


def test_random_coalitions_tell_what_is_added_up():
    masks = torch.rand(64, 10, generator=torch.Generator().manual_seed(0)) < 0.5
    worth = torch.arange(10, dtype=torch.float64)
    assert slopes(masks, masks.double() @ worth + 3.0).tolist() == pytest.approx(worth.tolist())
