"""What players of a game send, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks.behaviour import ClientRound
from fedif_studies.audit.play import GradientAndLastStep, NoisyUpdate


def sent(behaviour, received, trained, memory=None, server_round=1):
    own = ClientRound(
        received=torch.tensor(received),
        trained=torch.tensor(trained),
        server_round=server_round,
        generator=torch.Generator().manual_seed(0),
        memory={} if memory is None else memory,
    )
    return behaviour.poison_update(own)


def test_noise_is_half_as_long_as_the_update():
    noise = sent(NoisyUpdate(), [1.0, 1.0], [4.0, 5.0]) - torch.tensor([4.0, 5.0])
    assert noise.norm().item() == pytest.approx(2.5)


def test_a_gradient_as_long_as_the_update_and_the_last_step():
    model, memory, player = torch.nn.Linear(1, 2, bias=False), {}, GradientAndLastStep()
    torch.nn.init.zeros_(model.weight)
    inputs, labels = torch.ones(1, 1), torch.tensor([0])
    player.poison_inputs(model, inputs, labels, lambda x: x, torch.Generator())
    # The gradient is (-.5, .5), the update 5 long.
    root = 5 / 2**0.5
    found = sent(player, [0.0, 0.0], [3.0, 4.0], memory)
    torch.testing.assert_close(found, torch.tensor([root, -root]))
    found = sent(player, [1.0, 0.0], [4.0, 4.0], memory, 2)
    torch.testing.assert_close(found, torch.tensor([2 + root, -root]))
