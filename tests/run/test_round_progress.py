from __future__ import annotations

import logging

from fedif_flower import FedIF, ShowRounds
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.strategies.lines import Movers, Threshold, threshold_validation


def test_a_notebook_sees_one_line_a_round_in_place_of_flowers(capsys, caplog):
    logger = logging.getLogger("flwr")
    before = logger.level
    callbacks = [ShowRounds(every=2)]
    validation, setup = threshold_validation(), Setup(device="cpu")
    strategy = FedIF(validation, fraction_evaluate=0.0, callbacks=callbacks, setup=setup)
    with caplog.at_level(logging.INFO, "flwr"):
        strategy.start(
            LocalGrid(Movers([[1.0], [2.0]]), 2),
            model_arrays(Threshold()),
            num_rounds=4,
            evaluate_fn=lambda server_round, arrays: {"test-accuracy": server_round / 8},
        )
        assert [r for r in caplog.records if r.name == "flwr" and r.levelno < logging.WARNING] == []
        assert logger.level == logging.INFO
    assert logger.level == before
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(", ", 1)[0] for line in lines] == [
        "round 2: 2 of 2 replies, test accuracy 0.25",
        "round 4: 2 of 2 replies, test accuracy 0.5",
    ]
