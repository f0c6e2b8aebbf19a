"""A private copy of a model: what of it is a copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedif_flower.valuation.flat_model import FlatModel

CPU = torch.device("cpu")


class Adapted(nn.Module):
    """A frozen layer below one that is trained."""

    def __init__(self, *, base_is_sent: bool) -> None:
        super().__init__()
        self.base = nn.Linear(3, 4).requires_grad_(requires_grad=False)
        self.adapter = nn.Linear(4, 2)
        if not base_is_sent:
            self.register_state_dict_post_hook(leave_out_base)

    def forward(self, inputs):
        return self.adapter(self.base(inputs).relu())


def leave_out_base(module, state, prefix, _) -> None:
    for name in ("base.weight", "base.bias"):
        del state[prefix + name]


@pytest.mark.parametrize("base_is_sent", [True, False])
def test_a_base_is_shared_only_if_nothing_can_be_loaded_into_it(base_is_sent):
    model = Adapted(base_is_sent=base_is_sent)
    copied = FlatModel(model, CPU)
    assert (copied.module.base.weight is model.base.weight) is not base_is_sent
    before = model.adapter.weight.clone()
    copied.load(torch.zeros(10), {"base.bias": torch.ones(4)} if base_is_sent else {})
    assert bool((copied.module.base.bias == 1).all()) is base_is_sent
    assert torch.equal(model.adapter.weight, before)
    assert not copied.module.adapter.weight.any()
    assert copied.parameter_names == ["adapter.weight", "adapter.bias"]
