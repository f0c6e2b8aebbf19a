"""The simulation on a Ray cluster of two nodes, named by ``RAY_ADDRESS`` alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from client_app import app as client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.ray_grid import ray_grid
from fedif_flower.runtime.simulation import simulate
from tests.integration.watch import MarkedProcesses

PROJECT = Path(__file__).parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.all]


_START_SECONDS = 60.0


@contextmanager
def ray_nodes(cpus: tuple[int, ...]) -> Iterator[str]:
    """Start a Ray cluster on this machine, a node per entry; yield its address.

    ``ray start`` is all there is to it. (Never ``ray stop``: it ends every Ray on a machine.)
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    host, port = address.split(":")
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    # A folder of its own: in Ray's usual one, `ray start` leaves a note by which everything that
    # starts Ray later looks for this cluster.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as output,
    ):
        given = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
        marked = MarkedProcesses({**os.environ, **given})
        try:
            for index, count in enumerate(cpus):
                place = [f"--address={address}"] if index else head
                options = [f"--node-ip-address={host}", f"--num-cpus={count}", "--block"]
                marked.start([*ray, "start", *place, *options], cwd=PROJECT, output=output)
                _wait_for_nodes(ray, address, index + 1)
            yield address
        finally:
            marked.terminate()


def _wait_for_nodes(ray: list[str], address: str, count: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        status = subprocess.run(
            [*ray, "status", f"--address={address}"], capture_output=True, text=True, check=False
        )
        active = status.stdout.partition("Active:")[2].partition("Pending:")[0]
        if active.count("node_") == count:
            return
    raise RuntimeError(f"Ray did not have {count} nodes within {_START_SECONDS:g} s")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ray_nodes((1, 1)) as address:
        yield address


def make_app() -> ClientApp:
    """An app whose nodes say on which Ray node they run; in here, for Ray to carry it by value."""
    app = ClientApp()

    @app.query()
    def _(message: Message, _context: Context) -> Message:
        import time

        import ray

        time.sleep(0.5)  # No actor is to answer all of them before the other begins.
        where = ConfigRecord({"ray-node": ray.get_runtime_context().get_node_id()})
        return Message(RecordDict({"where": where}), reply_to=message)

    return app


def test_clients_run_on_both_nodes(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with ray_grid(make_app(), 8) as grid:
        questions = [
            Message(RecordDict(), node_id, MessageType.QUERY) for node_id in grid.get_node_ids()
        ]
        replies = grid.send_and_receive(questions)
        nodes = [reply.content["where"]["ray-node"] for reply in replies]
    assert len(nodes) == 8
    assert len(set(nodes)) == 2


def test_a_federation_has_the_same_bits_as_in_one_process(address, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", address)

    def config(name: str) -> RunConfig:
        settings = {
            "num-clients": 10,
            "num-server-rounds": 2,
            "fraction-train": 0.4,
            "output-dir": str(tmp_path),
            "run-name": name,
            "device": "cpu",
        }
        return RunConfig.from_run_config(default_run_config() | settings)

    there = simulate(config("cluster"), client_app)
    here = run_federation(LocalGrid(client_app, 10), config("here"))
    models = [torch.load(run / "model.pt", weights_only=True) for run in (there, here)]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
