from __future__ import annotations

import torch

from fedif_flower.attacks.distributed_trigger import DistributedTrigger, stamp_bars


def test_the_trigger_is_four_bars():
    stamped = stamp_bars(torch.zeros(1, 1, 8, 8))[0, 0]
    assert stamped[:4, :6].tolist() == [
        [1, 1, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    assert int(stamped.sum()) == 8
    assert stamp_bars(torch.zeros(1, 1, 8, 8), (3,)).nonzero()[:, 2:].tolist() == [[2, 3], [2, 4]]


def test_a_client_has_one_bar_and_the_test_all_of_them():
    attack, pixels = DistributedTrigger(1.0, 0), torch.zeros(5, 1, 8, 8)
    labels = torch.arange(5)
    bars = set()
    for client in range(20):
        generator = torch.Generator().manual_seed(client)
        stamped, targets = attack.poison_examples(pixels, labels, 10, generator)
        assert targets.tolist() == [0] * 5
        assert bool((stamped == stamped[0]).all())  # every image has the same one
        assert int(stamped[0].sum()) == 2
        bars.add(tuple(stamped[0].flatten().nonzero().flatten().tolist()))
    assert len(bars) == 4
    triggered, _ = attack.triggered(pixels, labels, 10)
    assert torch.equal(triggered, stamp_bars(pixels[1:]))
