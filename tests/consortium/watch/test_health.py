"""``/health`` of the keeper and of the guarded SuperLink."""

from __future__ import annotations

import httpx
import pytest

from fedif_consortium.superlink.guarded_superlink import _online
from fedif_consortium.watch.health import serving_health
from tests.integration.deployed import free_port


def health(address: str) -> httpx.Response | None:
    try:
        return httpx.get(f"http://{address}/health", trust_env=False, timeout=30)
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_state_is_asked_for_at_every_look(host):
    state: dict[str, object] = {"members-online": 2}
    address = f"{host}:{free_port()}"
    with serving_health("superlink", address, lambda: state):
        found = health(address)
        assert found.status_code == 200
        assert found.json().items() >= {"part": "superlink", "members-online": 2}.items()
        state["status"] = "stalled"
        assert health(address).status_code == 503
    assert health(address) is None


def test_a_superlink_says_how_many_nodes_are_online():
    class State:
        def get_node_info(self, *, statuses):
            return ["node"] * 3 if statuses == ["online"] else []

    class App:
        class state:  # noqa: N801
            class linkstate_factory:  # noqa: N801
                state = State

    assert _online(App) == {"members-online": 3}
