"""Options of several values: what is not known is refused before anything is measured."""

from __future__ import annotations

from typing import Any

import pytest

from fedif_flower.errors import ConfigError
from fedif_studies import coverage, factorial, games
from fedif_studies.benchmarks import deployed_memory, siege
from fedif_studies.held_out import __main__ as held_out
from fedif_studies.lab.lists import counts_in, names_in, shares_in


def test_parts_of_a_list_are_read_with_blanks_around_them():
    assert names_in("data", "digits, cifar10", ("cifar10", "digits")) == ["digits", "cifar10"]
    assert counts_in("sizes", "60, 120") == [60, 120]
    assert shares_in("wrong", "0,0.5, 1") == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("study", "option", "text", "told"),
    [
        (games, "epochs", "x", "epochs = 'x'; allowed: integers >= 1, divided by commas"),
        (games, "epochs", "0", "epochs = 0; allowed: integers >= 1"),
        (coverage, "sizes", "60,", "sizes = '60,'; allowed: integers >= 1, divided by commas"),
        (coverage, "data", "nosuch", "data = 'nosuch'; allowed: digits, fashion-mnist"),
        (coverage, "rules", "Nope", "rules = 'Nope'; allowed: FedAvg, FedIF, influence descent"),
        (factorial, "data", "digits,", "data = ''; allowed: digits, fashion-mnist"),
        (held_out, "sizes", "x", "sizes = 'x'; allowed: integers >= 1, divided by commas"),
        (held_out, "data", "nosuch", "data = 'nosuch'; allowed: digits, fashion-mnist, cifar10"),
        (held_out, "wrong", "nan", r"wrong = nan; allowed: numbers in \[0, 1\]"),
        (held_out, "wrong", "half", r"wrong = 'half'; allowed: numbers in \[0, 1\], divided"),
        (deployed_memory, "members", "4;16", "members = '4;16'; allowed: integers >= 1, divided"),
        (siege, "only", "none", "only = 'none'; allowed: endless_header, "),
    ],
)
def test_a_study_refuses_what_it_does_not_know(monkeypatch, study, option, text, told):
    def fill(*_: Any, **__: Any) -> bool:
        raise AssertionError("it began")

    monkeypatch.setattr(study, "fill", fill, raising=False)
    with pytest.raises(ConfigError, match=told):
        study.main(**{option: text})
