from __future__ import annotations

import torch

from fedif_flower.seeding import derive_seed, numpy_generator, torch_generator


def test_a_generator_depends_on_purpose_seed_and_ids_alone():
    drawn = [("a", 0), ("b", 0), ("a", 1), ("a", 0, 0), ("a", 0, 1), ("a", 0, 1, 2), ("a", 0, 2, 1)]
    assert len({derive_seed(*ids) for ids in drawn}) == len(drawn)
    assert derive_seed("a", 3, 4) == derive_seed("a", 3, 4)


def test_draws_do_not_touch_the_global_generators():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = torch.rand(3, generator=torch_generator("x", 5, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, torch.rand(3, generator=torch_generator("x", 5, 2)))
    assert numpy_generator("x", 5).random() == numpy_generator("x", 5).random()
