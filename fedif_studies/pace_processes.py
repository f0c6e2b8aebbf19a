"""How soon a federation of real processes with slow members learns: SuperLink and SuperNodes.

Six members on the digits, each asleep for a while before it trains: from 1.5 to 15 seconds, evenly
in their logarithm. Flower starts a process for each message, which takes some seconds more. Seconds
are those of the rounds of ``rounds.csv``: what goes before the first is not counted. Rows are
appended as they come; what is there is not run again.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.processes import MarkedProcesses
from fedif_flower.settings import Scalar
from fedif_studies.rows import RESULTS, append_rows, machine

OUTPUT = RESULTS / "pace-processes.csv"
REPOSITORY = Path(__file__).resolve().parents[1]
CLIENTS, GOAL, FASTEST, RATIO = 6, 0.9, 1.5, 10.0
PACES: Mapping[str, Mapping[str, Scalar]] = {
    "wait for all": {"num-server-rounds": 12},
    "buffered, steps of 3": {"num-server-rounds": 24, "rounds": "buffered", "buffer-size": 3},
}
COLUMNS = ("pace", "strategy", "seed", "seconds-to-90", "last-five", "seconds", "steps", "load")
# Python reads it before an app; heartbeats are on their way when that imports this package.
ASLEEP = """
import os, sys, time
class Asleep:
    def find_spec(self, name, path=None, target=None):
        if name == "fedif_flower":
            sys.meta_path.remove(self)
            time.sleep(float(os.environ["FEDIF_ASLEEP"]))
if any(word.endswith("flwr-clientapp") for word in sys.orig_argv):
    sys.meta_path.insert(0, Asleep())
"""


def seconds_of(member: int) -> float:
    """Return how long a member sleeps before it trains."""
    return float(FASTEST * RATIO ** (member / (CLIENTS - 1)))


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def measure(pace: str, strategy: str, seed: int) -> dict[str, object]:
    """Return one line."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = _run(Path(folder), PACES[pace], strategy, seed)
        rows = read_rows(run_dir / "rounds.csv")
    elapsed, reached = 0.0, None
    for row in rows:
        elapsed += float(row["round_seconds"]) + float(row["aggregation_seconds"])
        if reached is None and float(row["test_accuracy"]) >= GOAL:
            reached = round(elapsed, 1)
    last = [float(row["test_accuracy"]) for row in rows[-5:]]
    return {
        "pace": pace,
        "strategy": strategy,
        "seed": seed,
        "seconds-to-90": "" if reached is None else reached,
        "last-five": round(sum(last) / len(last), 4),
        "seconds": round(elapsed, 1),
        "steps": len(rows) - 1,
        "load": round(os.getloadavg()[1], 1),  # Of the last five minutes.
    }


def _run(home: Path, pace: Mapping[str, Scalar], strategy: str, seed: int) -> Path:
    """Run a federation of processes in a folder; return the run's."""
    port, *ports = _free_ports(1 + CLIENTS)
    address = f"127.0.0.1:{port}"
    (home / "asleep").mkdir()
    (home / "asleep" / "sitecustomize.py").write_text(ASLEEP)
    (home / "flower").mkdir()
    (home / "flower" / "config.toml").write_text(
        f'[superlink.study]\naddress = "{address}"\ninsecure = true\n'
    )
    usual = {
        **os.environ,
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
        "FLWR_HOME": str(home / "flower"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    marked = MarkedProcesses(usual)
    config = {
        "num-clients": CLIENTS,
        "fraction-train": 1.0,
        "local-epochs": 1,
        "checkpoint-every": 0,
        "least-participation": 0.0,
        "strategy": strategy,
        "seed": seed,
        "device": "cpu",
        "output-dir": str(home / "runs"),
        "run-name": "run",
        **pace,
    }
    (home / "run.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items()))
    try:
        with (home / "log").open("wb") as log:
            link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
            marked.start(link, cwd=home, output=log)
            _wait(lambda: _answers(port), 120.0)
            for member, own in enumerate(ports):
                marked.environment |= {
                    "PYTHONPATH": str(home / "asleep"),
                    "FEDIF_ASLEEP": str(seconds_of(member)),
                }
                partition = f"partition-id={member} num-partitions={CLIENTS}"
                node = ["flower-supernode", "--insecure", "--superlink", address]
                node += ["--port", str(own), "--node-config", partition]
                marked.start(node, cwd=home, output=log)
            submit = ["flwr", "run", str(REPOSITORY), "study", "--run-config", f"{home}/run.toml"]
            subprocess.run(submit, env=marked.environment, check=True, stdout=log, stderr=log)
            folder = RunFolder(home / "runs" / "run")
            _wait(folder.is_complete, 3600.0)
    finally:
        marked.terminate()
    return folder.path


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.5)


def main(
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 1,
    output: Annotated[Path, typer.Option(help="The rows.")] = OUTPUT,
) -> None:
    """Measure what is not there yet."""
    of_machine = machine()
    columns = (*COLUMNS, *of_machine)
    done = {tuple(row[name] for name in COLUMNS[:3]) for row in read_rows(output)}
    for seed in range(seeds):
        for pace in PACES:
            if (pace, "fedavg", str(seed)) not in done:
                line = measure(pace, "fedavg", seed)
                append_rows(output, columns, [[*line.values(), *of_machine.values()]])


if __name__ == "__main__":
    typer.run(main)
