from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedif_flower.errors import ConfigError
from fedif_flower.round import Aggregation
from fedif_flower.strategies.config import configured_stages
from fedif_flower.valuation import Validation
from fedif_studies.backdoors.screen import TriggerScreen, strengthening
from fedif_studies.names import NAMES
from tests.rounds import a_round
from tests.strategies.named import config


def left_out(*influences: float, is_certain: bool = True) -> list[int]:
    found, shares = torch.tensor(influences).double(), torch.full((4,), 0.25).double()
    return strengthening(found, shares, 2.0, is_certain=is_certain).nonzero().flatten().tolist()


def test_what_raises_the_loss_too_far_is_left_out():
    assert left_out(3.0, 2.0, -1.0, 0.0, is_certain=False) == [0]
    # A trigger is certain: above the mean, 1.
    assert left_out(3.0, 2.0, -1.0, 0.0) == [0, 1]
    # Above a mean of 6 would let 5 pass.
    assert left_out(9.0, 9.0, 5.0, 1.0) == [0, 1, 2]
    # The mean is negative: what raises the loss at all.
    assert left_out(0.5, -0.1, -4.0, -4.0) == [0]
    assert left_out(math.nan, 5.0, 0.0, 0.0) == []


class Corner(nn.Module):
    """Answers class 1 by its weight times the last pixel, else 0 or 2 by the others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, images):
        rest = images.flatten(1)[:, :-1].sum(dim=1)
        one = 60 * self.weight[0] * images[:, 0, -1, -1] - 4 + self.weight[1]
        return torch.stack([4 - rest, one, rest - 4], dim=1)


def images_validation() -> Validation:
    images = torch.rand(30, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    images[:, 0, -1, -1] *= 0.2
    images[0, 0, -1, -1] = 1.0
    labels = torch.where(images.flatten(1)[:, :-1].sum(dim=1) < 4, 0, 2)
    return Validation(Corner(), images, labels, device="cpu")


def test_the_update_that_brings_the_trigger_is_replaced_by_the_mean_of_the_others():
    screen = TriggerScreen(images_validation(), steps=60)
    screen.begin(None)
    updates = torch.tensor([[0.0, 0.5], [1.0, 0.0], [0.0, -0.4]])
    screened = screen.before(a_round(updates, num_examples=torch.arange(1.0, 4.0).double()))
    # Examples 1 and 3: a quarter and three quarters.
    mean = 0.25 * 0.5 - 0.75 * 0.4
    expected = [[0.0, 0.5], [0.0, mean], [0.0, -0.4]]
    torch.testing.assert_close(screened.client_updates, torch.tensor(expected))
    own = screened.unmixed(Aggregation(weights=torch.tensor([0.2, 0.4, 0.4]))).weights
    assert own.tolist() == pytest.approx([0.2 + 0.1, 0, 0.4 + 0.3])
    assert "1 updates that strengthened it were left out" in screen.remark()
    other = TriggerScreen(images_validation())
    other.load_state_dict(screen.state_dict())
    assert other.remark() == screen.remark()


def test_a_run_config_names_it(tmp_path):
    keys = {"screen": NAMES["trigger-inversion"], "TriggerScreen.rise": 3.0}
    (stage,) = configured_stages(config(tmp_path, "fedavg", **keys))
    assert repr(stage) == "TriggerScreen(rise=3.0, small=0.5, steps=100)"


def test_it_needs_held_out_images():
    with pytest.raises(ConfigError, match=r"held-out images: TriggerScreen\(validation\)"):
        TriggerScreen().begin(None)
    rows = Validation(nn.Linear(2, 2), torch.ones(3, 2), torch.tensor([0, 1, 1]), device="cpu")
    with pytest.raises(ConfigError, match="a validation set of images"):
        TriggerScreen().begin(rows)
    with pytest.raises(ConfigError, match="steps = 0; allowed: an integer >= 1"):
        TriggerScreen(steps=0)
