"""The same simulation on one Ray node of two cores and on two nodes of one core each.

Both nodes run on this machine; on two machines the commands are the same (see README.md). Flower's
actors are spread by Ray; the simulation is told of the cluster by ``RAY_ADDRESS`` alone.
"""

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
from typing import Annotated

import typer

from benchmarks.common import Figure, report
from benchmarks.workload import PROJECT
from fedif_flower.runtime.processes import MarkedProcesses

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


def round_seconds(address: str, rounds: int) -> float:
    """Run the simulation on a cluster and return a round's mean seconds."""
    with tempfile.TemporaryDirectory() as folder:
        settings = f"num-server-rounds={rounds} local-epochs=200 eval-every={rounds}"
        command = [sys.executable, "simulation.py", "run", "-c", settings, "--output-dir", folder]
        subprocess.run(
            command,
            check=True,
            cwd=PROJECT,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "RAY_ADDRESS": address},
        )
        (table,) = Path(folder).glob("*/rounds.csv")
        header, _, _, *rows = (line.split(",") for line in table.read_text().splitlines())
        column = header.index("round_seconds")
        return sum(float(row[column]) for row in rows) / len(rows)


def main(
    full: Annotated[bool, typer.Option(help="more repetitions")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    rounds, times = (20, 3) if full else (5, 1)
    seconds: dict[tuple[int, ...], list[float]] = {(2,): [], (1, 1): []}
    for _ in range(times):
        for cpus, found in seconds.items():
            with ray_nodes(cpus) as address:
                found.append(round_seconds(address, rounds))
    one, two = (sorted(found) for found in seconds.values())
    ours, peer = two[times // 2], one[times // 2]
    spread = f"{two[0]:.2f} to {two[-1]:.2f} s"
    figure = Figure("a round: two nodes / one node", ours, peer, "s", ours / peer, "~ 1", spread)
    report(
        "Two Ray nodes of one core, one of two cores", "cluster", [figure], write=write, full=full
    )


if __name__ == "__main__":
    typer.run(main)
