"""``/health`` of the keeper and of the guarded SuperLink."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.runtime.guarded_superlink import _online
from fedif_flower.runtime.health import serving_health
from tests.integration.deployed import free_port, wait_for
from tests.runtime.keeping import Keeping


def health(address: str) -> httpx.Response | None:
    try:
        return httpx.get(f"http://{address}/health", trust_env=False, timeout=30)
    except httpx.TransportError:
        return None


def test_no_address_no_port():
    with serving_health("node", ""):
        pass


@pytest.mark.parametrize("address", ["9096", ":9096", "host:", "host:70000", "host:x"])
def test_what_is_no_address_is_refused_by_name(address):
    with pytest.raises(ConfigError, match=rf"FEDIF_HEALTH_ADDRESS = '{address}'; allowed: HOST"):
        serving_health("node", address).__enter__()


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


def test_a_keeper_that_is_started_answers(tmp_path):
    keeping = Keeping(tmp_path)
    file, address = keeping.write(), f"127.0.0.1:{free_port()}"
    file.write_text(f'health-address = "{address}"\nlog-format = "json"\n{file.read_text()}')
    code = "from fedif_flower.cli import main; main()"
    command = [sys.executable, "-c", code, "keeper", "--policy", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as keeper:
        try:
            answer = wait_for("health", lambda: health(address))
            assert answer.json().items() >= {"status": "ok", "part": "keeper", "members": 5}.items()
        finally:
            keeper.send_signal(signal.SIGTERM)
            lines = keeper.communicate(timeout=60)[1].splitlines()
    assert any('"message": "Members\' keeper-key:' in line for line in lines)
