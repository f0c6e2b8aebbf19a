from __future__ import annotations

import logging

from fedif_flower.local_methods import Guide, LocalMethod
from fedif_flower.strategies import FedAvg, Setup
from tests.strategies.lines import Movers, column, play, point


class Failing(Guide):
    """Raises whenever it is asked for what depends on reports."""

    def turn(self, members, server_round):
        raise ValueError("nothing can be fitted")

    def take(self, server_round, client_ids, reports):
        raise ZeroDivisionError("nobody reported")


class Failed(LocalMethod):
    def guide(self) -> Guide:
        return Failing()


def test_a_guide_that_fails_stops_no_round(caplog):
    movers = Movers([[1, 0], [3, 0]])
    setup = Setup(device="cpu", local_method=Failed())
    with caplog.at_level(logging.ERROR):
        params, (first, second) = play(
            FedAvg(fraction_evaluate=0.0, setup=setup), point(), movers, rounds=2
        )
    assert params.tolist() == [4.0, 0.0]
    assert [column(r, "status") for r in (first, second)] == [["accepted"] * 2] * 2
    assert sum("reports cannot be used" in m for m in caplog.messages) == 4
