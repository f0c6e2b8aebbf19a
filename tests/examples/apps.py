"""The apps in ``examples/``, as ``flwr run`` runs them but in this process."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from flwr.app import Context, RecordDict

from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("hospitals", "language-model", "quickstart", "time-series")


def project(name: str) -> dict:
    """Return what an example's ``pyproject.toml`` says."""
    return tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())


def run(name: str, output_dir: Path, *, num_clients: int | None = None, **changes) -> Path:
    """Run an example's ServerApp beside its ClientApps; return the folder of its results."""
    app = project(name)["tool"]["flwr"]["app"]
    config = app["config"] | {key.replace("_", "-"): value for key, value in changes.items()}
    config["output-dir"] = str(output_dir)
    server, client = (
        import_module(app["components"][half].split(":")[0]).app
        for half in ("serverapp", "clientapp")
    )
    grid = LocalGrid(client, num_clients or config["num-clients"])
    for node_id in grid.node_ids:
        grid.contexts[node_id].run_config.update(config)
    server(grid, Context(1, 1, node_config={}, state=RecordDict(), run_config=config))
    return output_dir / config.get("run-name", "")


def weights(run_dir: Path) -> dict[int, float]:
    """Each partition's aggregation weights over all rounds."""
    sums: dict[int, float] = {}
    for row in read_rows(run_dir / "clients.csv"):
        partition_id = int(row["partition_id"])
        sums[partition_id] = sums.get(partition_id, 0.0) + float(row["weight"])
    return sums
