"""Harm in one round, repair in the next: by hand."""

from __future__ import annotations

import torch

from fedif_flower.attacks import ClientRound
from fedif_studies.attacks.harm_and_repair import HarmAndRepair, HarmForRepair

UPDATES = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


def test_alone_the_repair_is_the_harm_turned_round():
    acting, memory, sent = HarmAndRepair(4.0), {}, []
    for server_round in (1, 2):
        own = ClientRound(torch.zeros(2), UPDATES[0], server_round, torch.Generator(), memory)
        sent.append(acting.poison_update(own).tolist())
    assert sent == [[-4.0, 0.0], [4.0, 0.0]]


def test_in_a_pair_one_harms_and_the_other_repairs():
    acting = HarmForRepair(4.0)
    rounds = [acting.collude(torch.zeros(2), UPDATES, torch.Generator()) for _ in range(3)]
    harm = [[1.0, 0.0], [0.0, -4.0]]
    assert [sent.tolist() for sent in rounds] == [harm, [[1.0, 4.0], [0.0, 1.0]], harm]
