"""What the tests of grids share: small cells, results made by hand."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedif_flower.run.config import RunConfig
from fedif_flower.settings import Scalar
from fedif_studies.lab.cells import LABEL, Cell, make_cell

DEFAULTS = RunConfig.defaults()


def small_cell(output_dir: Path, name: str = "cell", **settings: Scalar) -> Cell:
    own = {"num-clients": 5, "fraction-train": 0.4, "num-server-rounds": 2, "local-epochs": 1}
    changed = {key.replace("_", "-"): value for key, value in settings.items()}
    return make_cell("group", name, {**DEFAULTS, **own, "device": "cpu", **changed}, output_dir)


def write_result(
    run_dir: Path,
    settings: dict[str, Scalar],
    accuracies: list[float],
    **summary: object,
) -> Path:
    """Write a complete run's directory as a run leaves it, with these test accuracies."""
    config = RunConfig.from_run_config({**DEFAULTS, **settings}).to_mapping()
    run_dir.mkdir(parents=True)
    lines = ["round,test_accuracy,validation_accuracy"]
    lines += [f"{n},{a},{a + 0.01}" for n, a in enumerate([0.1, *accuracies])]
    (run_dir / "rounds.csv").write_text("\n".join(lines) + "\n")
    content = {"config": config, "machine": {"cores": 2, "processor": "abacus"}, **summary}
    (run_dir / "summary.json").write_text(json.dumps(content))
    (run_dir / LABEL).write_text(json.dumps({"revision": "abc"}))
    return run_dir


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow: a limit on the size of files stands in for a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
