from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.runtime.guard_limits import GuardLimits, variable

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_limits_come_from_the_environment():
    found = GuardLimits.from_environment(
        {"FEDIF_NODE_REQUESTS": "35.5", "FEDIF_STRANGER_CONNECTIONS": "64", "HOME": "/root"}
    )
    assert (found.node_requests, found.stranger_connections) == (35.5, 64)
    assert GuardLimits.from_environment({}) == GuardLimits()


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("FEDIF_NODE_REQUESTS", "many", ">= 1"),
        ("FEDIF_REPLY_BUDGET", "0.5", ">= 1"),
        ("FEDIF_ADDRESS_CONNECTIONS", "3.5", ">= 4"),
        ("FEDIF_REQUEST_SECONDS", "nan", ">= 10"),
    ],
)
def test_a_wrong_limit_is_named_with_what_is_allowed(name, text, allowed):
    with pytest.raises(ConfigError) as found:
        GuardLimits.from_environment({name: text})
    assert str(found.value).startswith(f"{name} = ")
    assert allowed in str(found.value)


def test_a_limit_that_there_is_not_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"FEDIF_NODE_REQUEST; known: .*FEDIF_NODE_REQUESTS"):
        GuardLimits.from_environment({"FEDIF_NODE_REQUEST": "3"})
    GuardLimits.from_environment({"FEDIF_TEST_ID": "not the guard's"})


def test_nodes_get_the_descriptors_that_are_left(monkeypatch):
    monkeypatch.setattr(psutil.Process, "rlimit", lambda *_: (256, 1024))
    assert GuardLimits().most_node_connections() == 1024 - 256 - 2 * 128
    with pytest.raises(ConfigError, match=r"limit of open files is 1024; allowed: at least 2320"):
        GuardLimits(stranger_connections=1000).most_node_connections()


def test_the_operators_page_has_every_limit():
    page = OPERATIONS.read_text()
    for (_, default, _, words), name in zip(
        GuardLimits.describe(), GuardLimits.model_fields, strict=True
    ):
        assert f"| `{variable(name)}` | {default:g} | {words} |" in page
