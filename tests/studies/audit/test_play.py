"""What players of a game send, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks.behaviour import ClientRound
from fedif_studies.audit.federation import federate
from fedif_studies.audit.games import GAMES
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.play import GradientAndLastStep, MoreOfLastSteps, NoisyUpdate
from fedif_studies.audit.valuations import WATCHERS
from tests.studies.audit.test_audit import run_config


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


def test_twice_what_an_update_has_of_the_last_step():
    memory, player = {}, MoreOfLastSteps()
    assert sent(player, [0.0, 0.0], [1.0, 1.0], memory).tolist() == [1.0, 1.0]  # No step yet.
    # The last step was (2, 0): of the update (3, 4) it has 3.
    found = sent(player, [2.0, 0.0], [5.0, 4.0], memory, 2)
    torch.testing.assert_close(found, torch.tensor([8.0, 4.0]))


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


def test_who_leaves_early_is_paid_for_its_rounds_alone():
    task = AuditTask(run_config(**{"num-server-rounds": 6}))
    members = GAMES["first 5 rounds"].members(task, [1])
    watchers = [WATCHERS["accumulative influence"]() for _ in range(2)]
    federate(task, members, seed=0, watchers=[watchers[0]])
    short = AuditTask(run_config(**{"num-server-rounds": 5}))
    federate(short, short.members, seed=0, watchers=[watchers[1]])
    six, five = (watcher.values for watcher in watchers)
    assert six[1] == five[1]
    assert six[0] != five[0]


def test_three_identities_hold_the_same_data():
    task = AuditTask(run_config())
    members = GAMES["three identities, same data, noise"].members(task, [2])
    marked = [index for index, member in enumerate(members) if member.is_marked]
    assert marked == [2, 4, 5]
    assert len({members[index].identity for index in marked}) == 3
    assert all(members[index].pixels is task.members[2].pixels for index in marked)
