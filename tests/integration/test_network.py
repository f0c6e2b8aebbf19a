"""Hosts with addresses of their own: network namespaces joined by a bridge, one unplugged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedif_consortium.federation.flower import connect
from fedif_flower.run.rows import read_rows
from tests.integration.deployed import REPOSITORY, Deployment, marks, wait_for
from tests.integration.watch import if_killed

pytestmark = [*marks, pytest.mark.all]

SERVER = "10.213.7.1"
ROUNDS = 7
GIVES_UP = 60.0  # Seconds after which the SuperLink itself gives up on a node.


class Network:
    """A bridge on this host, and hosts ``10.213.7.<n>`` plugged into it."""

    def __init__(self) -> None:
        tag = uuid.uuid4().hex[:6]
        self.bridge = f"fb{tag}"
        self._tag = tag
        self._watch = contextlib.ExitStack()

    def host(self, number: int) -> str:
        return f"fedif-{self._tag}-{number}"

    def enter(self, number: int) -> tuple[str, ...]:
        """Return the words that let a command run on that host."""
        return ("ip", "netns", "exec", self.host(number))

    def plug(self, number: int, state: str) -> None:
        """Connect a host (``"up"``) or cut it off (``"down"``)."""
        ip("link", "set", f"v{self._tag}{number}", state)

    def __enter__(self) -> Network:
        hosts = "; ".join(f"ip netns del {self.host(number)}" for number in (1, 2, 3))
        self._watch.enter_context(if_killed(f"{hosts}; ip link del {self.bridge}"))
        try:
            ip("link", "add", self.bridge, "type", "bridge")
            ip("link", "set", self.bridge, "up")
            for number in (1, 2, 3):
                host, outer, inner = self.host(number), f"v{self._tag}{number}", "eth0"
                ip("netns", "add", host)
                ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", host)
                ip("link", "set", outer, "master", self.bridge, "up")
                ip("-n", host, "addr", "add", f"10.213.7.{number}/24", "dev", inner)
                ip("-n", host, "link", "set", inner, "up")
                ip("-n", host, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in (1, 2, 3):
            subprocess.run(["ip", "netns", "del", self.host(number)], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", self.bridge], stderr=subprocess.DEVNULL)
        self._watch.close()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with contextlib.ExitStack() as stack:
        try:
            entered = stack.enter_context(Network())
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            pytest.skip(f"no network namespaces here: {str(reason).strip()}")
        yield entered


def test_a_host_that_is_cut_off_and_reconnected(
    network: Network,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = tmp_path_factory.mktemp("network")
    proxy = shutil.which("nginx") is not None
    monkeypatch.setenv("FLWR_HOME", str(directory / "flower"))
    given = {"bind": "0.0.0.0", "proxy": proxy}
    with Deployment(directory, SERVER, network.enter(1), **given) as deployment:
        deployment.start_superlink()
        for number in (2, 3):
            config = f"partition-id={number - 2} num-partitions=2"
            deployment.start_node(f"node-{number}", config, prefix=network.enter(number))

        if proxy:  # What operators may do is not for other hosts, members' hosts included.
            authority = deployment.server / "ca.crt"
            connect("from-afar", deployment.address, authority)
            afar = deployment.call("flwr", "list", "from-afar", prefix=network.enter(2))
            assert afar.returncode != 0
            assert "403" in afar.stdout + afar.stderr

        config = {
            "num-clients": 2,
            "fraction-train": 1.0,
            "num-server-rounds": 1,
            "local-epochs": 1,
            "run-name": "measured",
            "device": "cpu",
        }
        runs = deployment.server / "runs"
        status, details = deployment.outcome(deployment.submit(REPOSITORY, config))
        assert status == "finished:completed", details
        needed = float(read_rows(runs / "measured" / "rounds.csv")[1]["round_seconds"])
        # On a machine that is quick enough, the round ends before the SuperLink gives up.
        timeout = 30.0 if 3.0 * needed < 30.0 else max(2.0 * GIVES_UP, 5.0 * needed)
        config |= {"num-server-rounds": ROUNDS, "pace.timeout": timeout, "run-name": "network"}
        config["least-participation"] = 0.0  # Of its seven rounds it may miss most.
        run_id = deployment.submit(REPOSITORY, config)
        run_dir = runs / "network"

        def rows_of(partition_id: int) -> list[dict[str, str]]:
            rows = read_rows(run_dir / "clients.csv")
            return [row for row in rows if row["partition_id"] == str(partition_id)]

        wait_for("round 1", lambda: len(rows_of(1)) == 1, timeout=300)
        network.plug(3, "down")
        wait_for("a round without it", lambda: any(r["rejection"] for r in rows_of(1)), timeout=300)
        network.plug(3, "up")
        status, details = deployment.outcome(run_id)
        assert status == "finished:completed", details
        summary = json.loads((Path(run_dir) / "summary.json").read_text())
        assert summary["rounds"] == ROUNDS
        assert [row["rejection"] for row in rows_of(0)] == [""] * ROUNDS
        assert rows_of(1)[-1]["rejection"] == ""
        assert {row["status"] for row in rows_of(1)} == {"accepted", "away"}
        if timeout < GIVES_UP:
            assert any("deadline" in row["rejection"] for row in rows_of(1))
