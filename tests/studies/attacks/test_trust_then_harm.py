from __future__ import annotations

import torch

from fedif_studies.attacks.trust_then_harm import TrustThenHarm


def test_weight_is_earned_and_then_spent():
    attack, updates = TrustThenHarm(factor=2.0, earning=2), torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    sent = [attack.collude(torch.zeros(2), updates, torch.Generator()) for _ in range(6)]
    assert [both[0].tolist() for both in sent] == [[4, 2], [4, 2], [-4, -2]] * 2
    assert all(torch.equal(both[0], both[1]) for both in sent)


def test_of_its_length_it_has_the_most_influence_on_data_like_the_accomplices():
    updates = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    gradient = -updates.mean(dim=0)
    sent = TrustThenHarm().collude(torch.zeros(9), updates, torch.Generator())[0]
    others = torch.randn(50, 9, generator=torch.Generator().manual_seed(2))
    others = others / others.norm(dim=1, keepdim=True) * sent.norm()
    assert float(-sent @ gradient) > float((-others @ gradient).max())
