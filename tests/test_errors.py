from __future__ import annotations

import json

import pytest
import torch
from scipy.optimize import linprog

from fedif_flower.errors import ConfigError, require, with_place


class Rule:
    def weigh(self, how):
        return how()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda: {}["a"], "KeyError('a') at test_errors.py:{} in <lambda>"),
        # Where other packages find the mistake, what called them is named.
        (lambda: json.loads(5), "TypeError("),
        (lambda: torch.ones(2) @ torch.ones(3), "RuntimeError("),
    ],
)
def test_an_error_is_told_with_the_app_s_own_line(how, words):
    with pytest.raises((KeyError, TypeError, RuntimeError)) as raised:
        Rule().weigh(how)
    told = with_place(raised.value)
    line = how.__code__.co_firstlineno
    assert told.startswith(words.format(line))
    assert told.endswith(f" at test_errors.py:{line} in <lambda>")
    assert len(told) < 200


def test_an_error_without_such_a_line_is_told_alone():
    assert with_place(KeyError("a")) == "KeyError('a')"
    with pytest.raises(ValueError, match="two dimensions") as raised:
        linprog([1.0], A_ub=[[1.0, 2.0]], b_ub=[1.0])
    error = raised.value
    error.__traceback__ = error.__traceback__.tb_next  # As if this package had called.
    assert with_place(error) == repr(error)


class SpeechlessError(Exception):
    def __repr__(self):
        raise ZeroDivisionError


def test_an_error_that_cannot_be_told_ends_nothing():
    with pytest.raises(SpeechlessError) as raised:
        exec("raise error", {"error": SpeechlessError(), "__name__": None})
    assert with_place(raised.value) == "SpeechlessError at <string>:1 in <module>"


def test_a_long_value_is_cut_where_an_error_names_it():
    with pytest.raises(ConfigError, match=r"^key = .{297}\.\.\.; allowed: less$"):
        require(False, "key", list(range(10_000)), "less")
