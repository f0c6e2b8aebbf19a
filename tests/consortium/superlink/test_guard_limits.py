from __future__ import annotations

import pytest

from fedif_consortium.superlink.guard_limits import GuardLimits
from fedif_flower.errors import ConfigError


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
