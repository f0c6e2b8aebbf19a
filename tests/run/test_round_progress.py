from __future__ import annotations

import io
import logging

from rich.console import Console

from fedif_flower import FedIF, ShowRounds
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.round_progress import RoundProgress
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.strategies.lines import Movers, Threshold, threshold_validation


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(num_rounds: int, seconds_per_round: float) -> list[str]:
    output, clock = io.StringIO(), Clock()
    with RoundProgress(num_rounds, Console(file=output, width=80), clock) as progress:
        for server_round in range(num_rounds + 1):
            progress.show(server_round, "test accuracy 25.0%" if server_round % 2 == 0 else "")
            clock.now += seconds_per_round
    return output.getvalue().splitlines()


def test_without_a_terminal_every_tenth_of_the_way_is_a_line():
    lines = shown(20, seconds_per_round=0.1)
    assert lines == [f"round {i}/20 test accuracy 25.0%" for i in range(0, 21, 2)]


def test_a_notebook_sees_one_line_a_round_in_place_of_flowers(capsys, caplog):
    before = logging.getLogger("flwr").level
    with caplog.at_level(logging.INFO, "flwr"):
        strategy = FedIF(
            threshold_validation(),
            fraction_evaluate=0.0,
            callbacks=[ShowRounds(every=2)],
            setup=Setup(device="cpu"),
        )
        grid = LocalGrid(Movers([[1.0], [2.0]]), 2)
        strategy.start(
            grid,
            model_arrays(Threshold()),
            num_rounds=4,
            evaluate_fn=lambda server_round, arrays: {"test-accuracy": server_round / 8},
        )
        assert [r for r in caplog.records if r.name == "flwr" and r.levelno < logging.WARNING] == []
        assert logging.getLogger("flwr").level == logging.INFO
    assert logging.getLogger("flwr").level == before
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(", ", 1)[0] for line in lines] == [
        "round 2: 2 of 2 replies, test accuracy 0.25",
        "round 4: 2 of 2 replies, test accuracy 0.5",
    ]
