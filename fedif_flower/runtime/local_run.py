"""A whole federation in this process, without Ray: to try a task, in a test or a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedif_flower.client.app import ClientPart, task_app
from fedif_flower.run.config import RunConfig, with_hyphens
from fedif_flower.run.federation import run_federation
from fedif_flower.run.part import RunPart
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar
from fedif_flower.tasks.config import OWN
from fedif_flower.tasks.task import Task


def run_locally(
    task: Task,
    output_dir: str | Path = "runs",
    *,
    parts: Sequence[RunPart] | None = None,
    client_parts: Sequence[ClientPart] = (),
    **settings: Scalar,
) -> Path:
    """Run a federation on a task in this process, and return the directory of its results.

    Clients train one after the other, so this suits a few clients with small models.

    Parameters
    ----------
    task : Task
        The task: model, data, loss, metrics.
    output_dir : str or Path
        The run gets a folder in this one for its results.
    parts : sequence of RunPart, optional
        What the run has beside its core, such as ``fedif_consortium.parts.run_parts()``. Default:
        the library's own parts.
    client_parts : sequence of ClientPart
        What the clients have beside their training.
    **settings
        Settings by run-config key, with underscores for hyphens: ``num_clients=4``. The name of a
        part's section keeps its own underscores.

    Raises
    ------
    FedIFError
        If something is wrong with the task or a setting, or anything stops the run.
    """
    run_config = with_hyphens(settings, parts or ())
    run_config["task"] = OWN + task.name
    run_config["output-dir"] = str(output_dir)
    config = RunConfig.from_run_config(run_config, parts)
    grid = LocalGrid(task_app(task, parts=client_parts), config.num_clients)
    return run_federation(grid, config, task=task, parts=parts)
