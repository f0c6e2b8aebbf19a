"""What the rounds of a federation cost, each federation in a process of its own."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedif_studies.benchmarks.memory import MemoryWatch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a round but the first, and peak bytes."""

    median: float
    low: float
    high: float
    driver: int
    others: int
    together: int


def cost_of(ends: Sequence[float], watch: MemoryWatch) -> Cost:
    """Return the cost of rounds that ended at these seconds, the first model's evaluation too."""
    # Ray starts during the first round.
    seconds = [end - start for start, end in itertools.pairwise(ends[1:])]
    milliseconds = [1e3 * value for value in seconds]
    return Cost(
        statistics.median(milliseconds),
        min(milliseconds),
        max(milliseconds),
        watch.driver,
        watch.others,
        watch.together,
    )


def measure_alone(module: str, case: DataclassInstance) -> Cost:
    """Let ``python -m module --case JSON`` measure a case in a process of its own."""
    command = [sys.executable, "-m", module, "--case", json.dumps(asdict(case))]
    printed = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ).stdout
    return Cost(**json.loads(printed.splitlines()[-1]))
