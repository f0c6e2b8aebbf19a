from __future__ import annotations

import re

import pytest

from fedif_flower.attacks import ATTACKS
from fedif_flower.listing import line_of, listing
from fedif_flower.local_methods import LOCAL_METHODS
from fedif_flower.strategies.config import SCREENS
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tasks.config import TASKS


@pytest.mark.parametrize("registry", [TASKS, ATTACKS, LOCAL_METHODS, SCREENS, STRATEGIES])
def test_every_name_has_one_line_of_its_own(registry):
    lines = [line_of(registry, name) for name in registry.sources()]
    assert len(set(lines)) == len(lines)
    for line in lines:
        assert 5 < len(line) < 120
        assert not {"`", "\n", "\\"} & set(line), line
        assert not re.search(r"\b(odot|sim|lVert|Return|mu|sigma|Delta)\b|\| [a-z]+ \||  ", line), (
            line
        )


def test_there_is_a_table_for_each_key():
    attacks = list(listing())[1]
    assert [line[0] for line in attacks.lines] == list(ATTACKS)


def test_what_another_package_brings_is_described_and_an_error_hides_nothing():
    assert line_of(STRATEGIES, "tests.test_listing:Nearest") == "Take the nearest"
    gone = "tests.nowhere:Nearest"
    assert f"cannot import '{gone}'" in line_of(STRATEGIES, gone)


class Nearest:
    """Take the nearest."""
