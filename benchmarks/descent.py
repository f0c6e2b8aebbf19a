"""Which descent of the validation loss is best, at which cost: many rules in one process.

``python -m benchmarks.descent --data-dir DIR`` runs what is not yet in
``docs/results/descent-<model>.csv`` and adds a line for each run: it can be stopped at any time.
``--one-round`` trains once for each column and lets every rule weigh the same rounds, into
``docs/results/descent-<model>-one-round.csv``: no training between them, one step at a time.
``--table`` prints what is there, means over the seeds.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.common import RESULTS
from benchmarks.descent_federation import COLUMNS, Federation, HeldOut, Round
from benchmarks.descent_rules import RULES

HELD_OUT = {
    "2000": HeldOut(),
    "500": HeldOut(500),
    "100": HeldOut(100),
    "20": HeldOut(20),
    "noisy-0.2": HeldOut(500, label_noise=0.2),
    "noisy-0.5": HeldOut(500, label_noise=0.5),
    "eight-classes": HeldOut(500, missing=(2, 6)),
    "five-classes": HeldOut(500, missing=(0, 2, 4, 6, 8)),
}
KEYS = ("rule", "column", "held_out", "seed", "rounds")
TRAJECTORY = "descent-4-capped"  # Whose rounds all rules weigh with --one-round.


def missing(
    path: Path, rules: str, columns: str, held_out: str, seeds: str, rounds: int
) -> Iterator[dict[str, object]]:
    """Yield the keys of what is not yet in a file, a column after the other."""
    for seed in seeds.split(","):
        for column in columns.split(","):
            for kind in held_out.split(","):
                for rule in rules.split(",") if rules else RULES:
                    key = dict(zip(KEYS, (rule, column, kind, int(seed), rounds), strict=True))
                    wanted = {name: str(value) for name, value in key.items()}
                    if not any(wanted.items() <= line.items() for line in read(path)):
                        yield key


def read(path: Path) -> list[dict[str, str]]:
    """Return the lines that are there already."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add(path: Path, line: dict[str, object]) -> None:
    """Add a line, and a header before the first."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(line), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in line.items()})


def print_table(lines: list[dict[str, str]], part: str) -> None:
    """Print a line for each rule and D': accuracy on a part, in % (and seeds)."""
    print(f"| rule | D' | {' | '.join(COLUMNS)} | weight of malicious, % | AUC | passes |")
    print("| --- | --- |" + " ---: |" * (len(COLUMNS) + 3))
    for rule, kind in dict.fromkeys((line["rule"], line["held_out"]) for line in lines):
        own = [line for line in lines if (line["rule"], line["held_out"]) == (rule, kind)]
        by_column = {c: [line for line in own if line["column"] == c] for c in COLUMNS}

        def mean(name: str, of: list[dict[str, str]], factor: float = 100.0) -> str:
            values = [float(line[name]) for line in of if line[name] != "nan"]
            return f"{factor * statistics.fmean(values):.1f}" if values else "-"

        noisy = by_column["label-noise"]
        cells = [f"{mean(part, o)} ({len(o)})" if o else "-" for o in by_column.values()]
        cells += [mean("malicious_weight", noisy), mean("auc", noisy), mean("passes", own, 1.0)]
        print(f"| {rule} | {kind} | {' | '.join(cells)} |")


def main(
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST lies")] = "",
    rules: Annotated[str, typer.Option(help="names with commas; empty: all")] = "",
    columns: Annotated[str, typer.Option(help=", ".join(COLUMNS))] = ",".join(COLUMNS),
    held_out: Annotated[str, typer.Option(help=", ".join(HELD_OUT))] = "500",
    seeds: Annotated[str, typer.Option()] = "0",
    rounds: Annotated[int, typer.Option()] = 40,
    output: Annotated[Path, typer.Option(help="a folder")] = RESULTS,
    model: Annotated[str, typer.Option(help="lenet5, or mlp: ten times as fast")] = "mlp",
    one_round: Annotated[bool, typer.Option("--one-round")] = False,
    part: Annotated[str, typer.Option(help="choosing or test, for the table")] = "choosing",
    table: Annotated[bool, typer.Option("--table", help="print what is there")] = False,
) -> None:
    """Run what is missing."""
    torch.set_num_threads(1)
    path = output / f"descent-{model}{'-one-round' if one_round else ''}.csv"
    if table:
        print_table(read(path), part)
        return
    federations: dict[tuple[object, ...], Federation] = {}
    given: dict[tuple[object, ...], list[Round]] = {}
    for key in missing(path, rules, columns, held_out, seeds, rounds):
        rule, column, kind, seed, _ = key.values()
        place = (column, kind, seed)
        if place not in federations:
            federations.clear()  # Their models take room, and come a column after the other.
            federations[place] = Federation(
                COLUMNS[str(column)], int(str(seed)), data_dir, HELD_OUT[str(kind)], model
            )
        federation = federations[place]
        if one_round and place not in given:
            given.clear()
            given[place] = []
            federation.run(RULES[TRAJECTORY](), rounds, given[place].append)
        started = time.perf_counter()
        chosen = RULES[str(rule)]()
        found = (
            federation.one_round(chosen, given[place])
            if one_round
            else federation.run(chosen, rounds)
        )
        seconds = time.perf_counter() - started
        add(path, {**key, **asdict(found), "seconds": seconds})


if __name__ == "__main__":
    typer.run(main)
