"""A strategy of one's own whose methods return something else than they have to."""

from __future__ import annotations

import pytest

from fedif_flower import FedAvg
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from tests.server.loops import Passing, four
from tests.strategies.lines import BASE, point


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


def test_rounds_in_which_nobody_is_drawn_are_told_of_once(caplog):
    class Nobody(FedAvg):
        def select(self, nodes, server_round):
            return []

    strategy = Nobody(**BASE)
    play(strategy, rounds=3)
    assert strategy.history.rounds == []
    assert caplog.text.count("round 1: Nobody.select draws nobody; such a round asks nobody") == 1
    assert caplog.text.count("draws nobody") == 1
