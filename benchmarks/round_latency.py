"""Seconds that a round takes between real processes, apart from training.

``python -m benchmarks.round_latency`` starts a SuperLink with TLS and SuperNode authentication and
SuperNodes on this machine, and lets the server ask each of them a question, round after round:
with Flower's own grid and task polling, and with those of a deployment here; then the same with
clients that import what this project's ClientApp does, whose start is part of every round.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import Figure, Timing, report
from tests.integration.deployed import REPOSITORY, Deployment, wait_for

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "latency"
version = "1.0.0"
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "servers:server"
clientapp = "clients:client"
[tool.flwr.app.config]
nodes = 4
rounds = 5
polling = true
output = ""
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
from fedif_flower.messages.polling_grid import PollingGrid

server = ServerApp()

@server.main()
def main(grid, context):
    config, seconds = context.run_config, []
    while len(list(grid.get_node_ids())) < config["nodes"]:
        time.sleep(0.1)
    if config["polling"]:
        grid = PollingGrid(grid)
    for _ in range(config["rounds"]):
        started = time.perf_counter()
        messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
        replies = list(grid.send_and_receive(messages))
        assert len(replies) == config["nodes"] and not any(r.has_error() for r in replies)
        seconds.append(time.perf_counter() - started)
    Path(config["output"]).write_text(json.dumps(seconds))
"""
CLIENT = """
{imports}
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

client = ClientApp()

@client.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
"""


def measure(deployment: Deployment, app: Path, *, nodes: int, polling: bool, rounds: int) -> Timing:
    """Run one app and return what its rounds took."""
    output = deployment.directory / f"seconds-{polling}.json"
    config = {"nodes": nodes, "rounds": rounds, "polling": polling, "output": str(output)}
    run_id = deployment.submit(app, config)
    # Not before: Flower's commands would take processor time from the rounds.
    wait_for("rounds", output.exists, timeout=600.0, pause=1.0)
    status, details = deployment.outcome(run_id)
    if status != "finished:completed":
        raise SystemExit(f"{status}: {details}\n{deployment.log('superlink')}")
    # The first round finds some nodes just after, some just before their three seconds of sleep.
    seconds = json.loads(output.read_text())[1:]
    return Timing(statistics.median(seconds), min(seconds), max(seconds))


def measure_all(imports: str, nodes: int, rounds: int) -> list[Timing]:
    """Return a round's seconds as Flower has it, with our task polling, and with our grid too."""
    found = []
    with tempfile.TemporaryDirectory(prefix="fedif-") as temporary:
        app = Path(temporary) / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(PYPROJECT)
        (app / "servers.py").write_text(SERVER)
        (app / "clients.py").write_text(CLIENT.format(imports=imports))
        for interval, grids in (("1", (False,)), ("0.2", (False, True))):
            directory = Path(temporary) / f"federation-{interval}"
            directory.mkdir()
            with Deployment(directory) as deployment:
                environment = deployment.marked.environment
                environment["PYTHONPATH"] = str(REPOSITORY)
                environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = interval
                deployment.start_superlink()
                for index in range(nodes):
                    deployment.start_node(f"node-{index}", f"partition-id={index} data-dir='.'")
                found += [
                    measure(deployment, app, nodes=nodes, polling=polling, rounds=rounds)
                    for polling in grids
                ]
    return found


def main(
    nodes: Annotated[int, typer.Option(help="SuperNodes")] = 4,
    rounds: Annotated[int, typer.Option(help="rounds of each run")] = 6,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    figures = []
    for title, imports in (("clients that do nothing", ""), ("our imports", "import client_app")):
        before, *after = measure_all(imports, nodes, rounds)
        for name, seconds in zip(("task polling", "task polling, PollingGrid"), after, strict=True):
            figures.append(
                Figure(
                    f"{nodes} nodes, {title}: {name} / Flower's own",
                    seconds.median,
                    before.median,
                    "s",
                    seconds.median / before.median,
                    "<= 6.5 s" if "Grid" in name and not imports else "",
                    f"{seconds.low:.1f} to {seconds.high:.1f} s",
                    f"Flower's {before.low:.1f} to {before.high:.1f} s",
                )
            )
    report("A round between real processes", "round-latency", figures, write=write)


if __name__ == "__main__":
    typer.run(main)
