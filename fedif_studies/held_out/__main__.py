"""Measure runs whose held-out set has faults, and print a table of all rows.

``python -m fedif_studies.held_out`` replaces a share of the held-out labels by other classes, or
leaves out examples of class 6, and runs ten members with this set. The run takes the set as it is,
without the examples that look wrong, or with a loss that is corrected for the estimated share of
wrong labels. The study adds a row for each run that ``docs/results/held-out.csv`` lacks.

Under FedAvg, training does not depend on the held-out set. So if contributions differ from those by
a set without faults, the faults alone have moved money from one member to another.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from fedif_flower.run.rows import read_rows
from fedif_studies.held_out.cells import LINES, MOST_HELD_OUT, cells_of
from fedif_studies.held_out.measure import OF_DATA, measure
from fedif_studies.held_out.table import short_table, table
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.lab.lists import names_in, shares_in, sizes_in
from fedif_studies.lab.table import print_markdown
from fedif_studies.rows import RESULTS

CSV = RESULTS / "held-out.csv"
SIZES = (20, 100, 500, 2000)
_USUAL = ",".join(map(str, SIZES))


def main(
    line: Annotated[str, typer.Option(help=f"one of {', '.join(LINES)}")] = "core",
    data: Annotated[str, typer.Option(help="of digits, fashion-mnist, cifar10")] = "digits",
    data_dir: Annotated[str, typer.Option(help="where the images are")] = "",
    sizes: Annotated[
        str, typer.Option(help=f"held-out examples; default: of {_USUAL} those that the data have")
    ] = "",
    wrong: Annotated[str, typer.Option(help="shares of wrong labels")] = "0,0.1,0.3,0.5",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    short: Annotated[bool, typer.Option(help="measure nothing, print the page's tables")] = False,
    again: Again = False,
) -> None:
    """Measure what the rows lack, and print a table of all."""
    of_data = names_in("data", data, OF_DATA)
    if short:
        for name in of_data:
            print_markdown(short_table(read_rows(CSV), name))
            typer.echo()
        return
    if line not in LINES:
        raise typer.BadParameter(f"line = {line!r}; allowed: {', '.join(LINES)}")
    shares = shares_in("wrong", wrong)
    counts = sizes_in(sizes, SIZES, {name: MOST_HELD_OUT[name] for name in of_data})
    cells = list(cells_of(line, counts, shares, seeds))
    complete = fill(CSV, cells, partial(measure, data_dir), again=again)
    print_markdown(table(read_rows(CSV)))
    finish(complete)


if __name__ == "__main__":
    run_study(main)
