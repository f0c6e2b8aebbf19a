"""Whether the keeper and the guarded SuperLink say that they are alive."""

from __future__ import annotations

import socket

import httpx
import pytest

from fedif_consortium.health import serving_health
from fedif_flower.errors import ConfigError
from tests.integration.deployed import free_port


def figures(address: str) -> list[str] | None:
    try:
        answer = httpx.get(f"http://{address}/health", trust_env=False, timeout=30)
    except httpx.TransportError:
        return None
    assert answer.status_code == 200
    return [line for line in answer.text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_figures_are_asked_for_at_every_look(host):
    address, online = f"{host}:{free_port()}", [2]
    with serving_health("superlink", address, {"members_online": lambda: online[0]}):
        assert figures(address) == ['fedif_up{part="superlink"} 1.0', "fedif_members_online 2.0"]
        online[0] = 3
        assert figures(address)[1] == "fedif_members_online 3.0"
    assert figures(address) is None


@pytest.mark.parametrize("address", ["9096", "127.0.0.1:70000", "127.0.0.1:TAKEN"])
def test_an_address_that_is_none_or_taken_is_refused_by_its_setting(address):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = address.replace("TAKEN", str(taken.getsockname()[1]))
        with (
            pytest.raises(ConfigError, match="health-address"),
            serving_health("keeper", address, key="health-address"),
        ):
            pass
