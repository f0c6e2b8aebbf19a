"""Which descent of the validation loss is best, at which cost: many rules in one process.

``python -m benchmarks.descent --data-dir DIR`` runs what is not yet in
``docs/results/descent-search.csv`` and adds a line for each run: it can be stopped at any time.
``--table`` prints what is there.
"""

from __future__ import annotations

import csv
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.common import RESULTS
from benchmarks.descent_federation import COLUMNS, Federation, HeldOut
from benchmarks.descent_rules import RULES

CSV = RESULTS / "descent-search.csv"
HELD_OUT = {
    "2000": HeldOut(),
    "500": HeldOut(500),
    "100": HeldOut(100),
    "20": HeldOut(20),
    "noisy-0.2": HeldOut(label_noise=0.2),
    "noisy-0.5": HeldOut(label_noise=0.5),
    "five-classes": HeldOut(missing=(0, 2, 4, 6, 8)),
    "eight-classes": HeldOut(missing=(2, 6)),
}
FIELDS = (
    *("rule", "column", "held_out", "seed", "rounds", "validation", "choosing", "test"),
    *("malicious_weight", "auc", "passes", "seconds"),
)


def done(path: Path) -> list[dict[str, str]]:
    """Return the lines that are there already."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add(path: Path, line: dict[str, object]) -> None:
    """Add a line, and a header before the first."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in line.items()})


def print_table(lines: list[dict[str, str]]) -> None:
    """Print, by rule, the accuracy on the choosing part in each column; mean over seeds."""
    groups = sorted({(line["held_out"], line["rounds"]) for line in lines})
    for held_out, rounds in groups:
        print(f"D' {held_out}, {rounds} rounds: choosing / test, weight of malicious, AUC, passes")
        for rule in dict.fromkeys(line["rule"] for line in lines):
            cells = []
            for column in COLUMNS:
                key = (rule, column, held_out, rounds)
                own = [
                    line
                    for line in lines
                    if tuple(line[k] for k in ("rule", "column", "held_out", "rounds")) == key
                ]
                if own:
                    mean = {
                        k: statistics.fmean(float(line[k]) for line in own) for k in FIELDS[5:11]
                    }
                    cells.append(
                        f"{100 * mean['choosing']:.1f}/{100 * mean['test']:.1f} "
                        f"{100 * mean['malicious_weight']:.0f}% {mean['auc']:.2f} ({len(own)})"
                    )
                    passes = mean["passes"]
                else:
                    cells.append("-")
            if any(cell != "-" for cell in cells):
                print(f"{rule:28}", " | ".join(f"{c:24}" for c in cells), f"{passes:.2f}")


def main(
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST lies")] = "",
    rules: Annotated[str, typer.Option(help="names with commas; empty: all")] = "",
    columns: Annotated[str, typer.Option()] = ",".join(COLUMNS),
    held_out: Annotated[str, typer.Option(help=", ".join(HELD_OUT))] = "2000",
    seeds: Annotated[int, typer.Option()] = 1,
    first_seed: Annotated[int, typer.Option()] = 0,
    rounds: Annotated[int, typer.Option()] = 60,
    output: Annotated[Path, typer.Option()] = CSV,
    table: Annotated[bool, typer.Option("--table", help="print what is there")] = False,
) -> None:
    """Run what is missing, or print the table."""
    if table:
        print_table(done(output))
        return
    torch.set_num_threads(1)
    federations: dict[tuple[str, int, str], Federation] = {}
    for seed in range(first_seed, first_seed + seeds):
        for kind in held_out.split(","):
            for rule in rules.split(",") if rules else RULES:
                for column in columns.split(","):
                    key = dict(zip(FIELDS, (rule, column, kind, seed, rounds), strict=False))
                    wanted = {k: str(v) for k, v in key.items()}
                    if any(wanted.items() <= line.items() for line in done(output)):
                        continue
                    place = (column, seed, kind)
                    if place not in federations:
                        federations[place] = Federation(
                            COLUMNS[column], seed, data_dir, HELD_OUT[kind]
                        )
                    started = time.perf_counter()
                    result = federations[place].run(RULES[rule](), rounds)
                    seconds = time.perf_counter() - started
                    add(output, {**key, **asdict(result), "seconds": seconds})


if __name__ == "__main__":
    typer.run(main)
