from __future__ import annotations

import pytest
import torch

from fedif_flower.errors import ConfigError
from fedif_flower.stages import MaxLength


def test_a_longer_update_is_shortened_in_place_and_a_shorter_one_stays():
    update = torch.tensor([3.0, 4.0])
    assert MaxLength(1.0).arrive(update, 25.0) == 1.0
    assert update.tolist() == pytest.approx([0.6, 0.8])
    assert MaxLength(5.0).arrive(update, 1.0) == 1.0
    assert update.tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("length", [0.0, -1.0, float("nan")])
def test_a_length_that_is_none_is_named(length):
    with pytest.raises(ConfigError, match=r"length = .*; allowed: > 0"):
        MaxLength(length)
