from __future__ import annotations

import gc

import pytest
from flwr.serverapp.strategy import FedAvg

from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import FlowerRule
from tests.strategies.hostile import Clients
from tests.strategies.test_screened import model


class Watching(FedAvg):
    """Notes what the garbage collector was kept off while the rule was at work."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.frozen: list[int] = []

    def aggregate_train(self, server_round, replies):
        self.frozen.append(gc.get_freeze_count())
        if self.error:
            raise self.error
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_the_collections_that_flower_asks_for_pass_over_what_is_alive(error):
    inner = Watching(error)
    before = gc.get_freeze_count()
    try:
        FlowerRule(inner).start(LocalGrid(Clients(), 3), model_arrays(model()), num_rounds=1)
    except KeyboardInterrupt:
        assert error
    assert inner.frozen[0] > 10_000
    assert gc.get_freeze_count() == before
