"""Runs every benchmark, each in a process of its own that prints its table.

This takes minutes and writes ``docs/results/bench-quick-*.csv``. With ``--full`` it takes some
forty minutes and writes ``docs/results/bench-*.csv``, which the documentation quotes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedif_studies.lab.commands import run_study

BENCHMARKS = ("step", "aggregation", "valuation", "scale", "memory", "masking", "throughput")


def main(
    full: Annotated[bool, typer.Option(help="the sizes that are quoted")] = False,
    data_dir: Annotated[str, typer.Option(help="image folder of CIFAR-10, for throughput")] = "",
) -> None:
    """Run all benchmarks; throughput only if there are images."""
    options = ["--write"]
    if full:
        options.append("--full")
    failed = []
    for name in BENCHMARKS:
        command = [sys.executable, "-m", f"fedif_studies.benchmarks.{name}", *options]
        if name == "throughput":
            if not data_dir:
                continue
            command += ["--data-dir", str(Path(data_dir).absolute())]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    run_study(main)
