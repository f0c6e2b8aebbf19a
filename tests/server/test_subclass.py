"""A strategy of one's own whose methods return something else than they have to."""

from __future__ import annotations

import pytest
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

from fedif_flower import FedAvg, FedIF
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from tests.server.loops import Passing, four
from tests.strategies.lines import BASE, point, validation


def play(strategy, rounds=2):
    return strategy.start(four(), model_arrays(point()), num_rounds=rounds)


def test_a_constructor_that_does_not_call_the_one_above_is_named():
    class Own(FedAvg):
        def __init__(self, **base):
            self.trim = 1

    words = r"^Own\.__init__ does not call super\(\)\.__init__\(\.\.\.\)"
    with pytest.raises(ConfigError, match=words):
        play(Own())
    with pytest.raises(ConfigError, match=words):
        Passing(Own()).start(four(), model_arrays(point()))


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("configure_train", lambda asked: None, "returned NoneType; allowed: an iterable of Mess"),
        ("configure_train", lambda asked: asked[0], "returned Message; allowed: an iterable of M"),
        ("configure_train", lambda asked: [1000], "returned int; allowed: an iterable of Message"),
        ("configure_evaluate", lambda asked: None, "returned NoneType; allowed: an iterable of"),
        ("aggregate_train", lambda pair: pair[0], "returned ArrayRecord; allowed: a pair "),
        ("aggregate_train", lambda pair: None, "returned NoneType; allowed: a pair .ArrayRecord"),
        ("select", lambda nodes: None, "returned NoneType; allowed: a list of some of the nodes"),
        ("select", lambda nodes: [1000], "returned int; allowed: .* ClientNode each"),
        (
            "select",
            lambda nodes: nodes[:1] * 2,
            "returned a node twice; allowed: each at",
        ),
    ],
)
def test_a_method_that_returns_something_else_is_named(method, change, words):
    def changed(strategy, *given):
        return change(getattr(FedAvg, method)(strategy, *given))

    own = type("Own", (FedAvg,), {method: changed})
    with pytest.raises(ConfigError, match=rf"^Own\.{method} {words}"):
        play(own(**BASE))


def test_a_subclass_that_makes_a_model_without_the_strategy_is_told_so_once(caplog):
    """Flower's own method averages what members send, whatever the subclass is named after."""

    class Own(FedIF):
        def aggregate_train(self, server_round, replies):
            return FlowersFedAvg.aggregate_train(self, server_round, list(replies))

    play(Own(validation(), **BASE))
    (message,) = [text for text in caplog.messages if "super().aggregate_train" in text]
    assert message.startswith("round 1: Own.aggregate_train makes a model without super().")
    assert message.endswith(
        "neither screened nor weighed by the strategy, and such a round is not in its history"
    )


def test_a_subclass_that_passes_over_a_round_is_told_nothing(caplog):
    class Skipping(FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 1:
                return None, None
            return super().aggregate_train(server_round, replies)

    play(Skipping(**BASE))
    assert "super().aggregate_train" not in caplog.text


def test_rounds_in_which_nobody_is_drawn_are_told_of_once(caplog):
    class Nobody(FedAvg):
        def select(self, nodes, server_round):
            return []

    strategy = Nobody(**BASE)
    play(strategy, rounds=3)
    assert strategy.history.rounds == []
    assert caplog.text.count("round 1: Nobody.select draws nobody; such a round asks nobody") == 1
    assert caplog.text.count("draws nobody") == 1
