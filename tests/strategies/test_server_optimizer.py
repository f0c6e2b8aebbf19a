"""A server optimizer in a federation: the model moves by what it makes of the steps."""

from __future__ import annotations

import pytest

from fedif_flower import FedAvg, FedIF
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from fedif_flower.stages import Clip, FedAvgM, FedYogi, LossBound
from fedif_flower.strategies.attribution import PathAttribution
from tests.strategies.hostile import Clients
from tests.strategies.lines import Movers, Threshold, play, threshold_validation
from tests.strategies.named import config
from tests.strategies.test_take_back import (
    BASE,
    SilentInRound,
    huge_in,
    line,
    one_more,
    run,
    validation,
)


def test_a_round_that_fails_makes_no_step():
    strategy = FedAvg(stages=[FedAvgM(0.5, 0.5)], **BASE)
    grid = SilentInRound(Clients(dict.fromkeys(range(3), one_more)), silent_round=2)
    arrays = strategy.start(grid, model_arrays(line()), num_rounds=3).arrays
    # 1/2 in round 1, nothing in round 2, 1/4 + 1/2 in round 3.
    assert arrays["0.weight"].numpy().item() == pytest.approx(1.25)
    assert strategy.stages.optimizer.shares == [0.5, 0.25]


def test_a_model_that_is_taken_back_takes_its_mean_with_it():
    strategy = FedIF(validation(), stages=[FedAvgM(0.5, 0.5)], **BASE)
    # Round 2 is undone by round 3; rounds 1 and 4 move by 1/2 and 1/4 + 1/2.
    expected = pytest.approx(1.25), [False, False, True, False]
    assert run(strategy, huge_in(2)) == expected


def test_the_validation_loss_bounds_the_model_with_momentum_and_not_the_step_alone():
    bound, momentum = LossBound(), FedAvgM(0.5, 0.5)
    strategy = FedIF(threshold_validation(), stages=[Clip(2.0), bound, momentum], **BASE)
    play(strategy, Threshold(), Movers([[1.0], [1.0]]), rounds=2)
    assert momentum.shares == [0.5, 0.25]
    assert bound.validation is strategy.validation
    # No model keeps such a loss.
    bound.load_state_dict({"first": 1.0, "least": -10.0, "held": 0})
    model = Threshold()
    model.load_state_dict(strategy.model.record.to_torch_state_dict())
    play(strategy, model, Movers([[1.0], [1.0]]), rounds=1)
    assert momentum.shares == [0.5]


def test_what_moves_each_parameter_by_itself_cannot_be_attributed(tmp_path):
    with pytest.raises(ConfigError, match=r"attribution.*'off' with server-optimizer 'fedyogi'"):
        config(tmp_path, "fedavg", **{"server-optimizer": "fedyogi", "attribution": "simpson"})
    with pytest.raises(ConfigError, match="moves each parameter by itself"):
        PathAttribution(threshold_validation()).on_start(FedAvg(stages=[FedYogi()]))
