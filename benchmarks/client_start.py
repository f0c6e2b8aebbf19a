"""Seconds, imports apart, until a fresh client process can train; its data were prepared before.

Flower's SuperNode starts a process for every message: what it does before the first training step
is part of every round. ``python -m benchmarks.client_start --data-dir DIR`` takes a data set that
all hosts share, by name, and a member's own folder of images.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import Figure, report
from benchmarks.workload import PROJECT
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.tasks.data import dirichlet_partition, load_dataset
from fedif_flower.tasks.data.export import export_split
from fedif_flower.tasks.models import default_model
from fedif_flower.tasks.registry import build_task

_CHILD = """
import json, sys, time
started = time.perf_counter()
import client_app
from fedif_flower.client import reply as client
from fedif_flower.client.data import client_site
from fedif_flower.run.config import RunConfig
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.tasks.config import TaskConfig
imported = time.perf_counter()
config, node = RunConfig.from_json(sys.argv[1]), NodeConfig(**json.loads(sys.argv[2]))
task = client._named_task(config.part(TaskConfig), sys.argv[3])
_, labels = task.load("client_data", client_site(config, node))
client._model(task)
ready = time.perf_counter()
print(json.dumps([imported - started, ready - imported, len(labels)]))
"""


def start_process(config: RunConfig, node: NodeConfig) -> tuple[float, float, int]:
    """Return a process's seconds of imports, its seconds to get ready, its number of images."""
    facts = json.dumps(dict(build_task(config).facts))
    arguments = [config.to_json(), json.dumps(node.model_dump()), facts]
    command = [sys.executable, "-c", _CHILD, *arguments]
    output = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True)
    imports, ready, images = json.loads(output.stdout.splitlines()[-1])
    return imports, ready, images


def measure(title: str, config: RunConfig, node: NodeConfig, times: int) -> Figure:
    """Return the figure of one kind of node."""
    started = [start_process(config, node) for _ in range(times + 1)]
    images = started[0][2]
    ready = [seconds for _, seconds, _ in started[1:]]
    imports = statistics.median(seconds for seconds, _, _ in started[1:])
    seconds = statistics.median(ready)
    return Figure(
        f"{title}: ready to train / imports",
        seconds,
        imports,
        "s",
        seconds,
        "<= 1 s",
        f"{min(ready):.2f} to {max(ready):.2f} s",
        f"{images} images; the first start, which prepares them: {started[0][1]:.2f} s",
    )


def main(
    data_dir: Annotated[str, typer.Option(help="where the data set lies")] = "",
    dataset: Annotated[str, typer.Option(help="its name")] = "digits",
    times: Annotated[int, typer.Option(help="repetitions")] = 7,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    settings = {"dataset": dataset, "data-dir": data_dir, "num-clients": 4}
    config = RunConfig.from_run_config(default_run_config() | settings)
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_dataset(config.dataset, config.data_dir)
        config = config.replace(model=default_model(loaded.image_shape))
        parts = dirichlet_partition(loaded, 4, config.dirichlet_alpha, config.seed)
        export_split(loaded, loaded.train, parts[0], Path(folder) / "own" / "train")
        figures = [
            measure(
                f"{dataset}, shared",
                config,
                NodeConfig(partition_id=0, num_partitions=4, data_dir=data_dir or None),
                times,
            ),
            measure(
                f"{dataset}, own folder",
                config,
                NodeConfig(partition_id=0, data_dir=f"{folder}/own"),
                times,
            ),
        ]
    report("A fresh client process", "client-start", figures, write=write)


if __name__ == "__main__":
    typer.run(main)
