"""Lists of the paper's tables and cells, with the time that each would take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from fedif_flower.tables import ResultTable
from fedif_studies.lab.measurements import Measurement
from fedif_studies.paper.selection import Selection, cell_name, select
from fedif_studies.paper.tables import TABLES, Table, Variant

_EXPLANATION = (
    "work: million images that the clients pass forward and backward through the model; "
    "time: what they would train for on one actor, judged by the results in --output-dir"
)


def list_tables(tables: Iterable[Table], measured: Sequence[Measurement], console: Console) -> None:
    """Print every table with its rows, columns, and work for one seed."""
    rate = seconds_per_image(measured)
    for table in tables:
        pairs = [(row, column) for row in table.rows for column in table.columns]
        work, seconds = _estimate(table, pairs, rate, None)
        _print(console, f"[bold]{table.name}[/]  {table.title}")
        _print(console, f"  {len(pairs)} cells, work {work}, time {seconds}")
        _print(console, f"  rows:    {' '.join(row.key for row in table.rows)}")
        for index, column in enumerate(table.columns):
            _print(console, f"  {'columns:' if index == 0 else '':8} {column.key}")
        console.print()
    _print(console, _EXPLANATION)


def list_cells(
    table: Table, selection: Selection, measured: Sequence[Measurement], console: Console
) -> None:
    """Print the cells of a table that were asked for, with their work."""
    rate = seconds_per_image(measured)
    chosen = select(table, selection)
    lines = [
        [cell_name(row, column, seed), *_estimate(table, [(row, column)], rate, selection.rounds)]
        for row, column, seed in chosen
    ]
    pairs = [(row, column) for row, column, _ in chosen]
    lines.append([f"{len(pairs)} cells", *_estimate(table, pairs, rate, selection.rounds)])
    title = f"{table.name}: {table.title}"
    ResultTable(title, ["cell", "work", "time"], lines, num_labels=1).print(console)
    _print(console, _EXPLANATION)


def _print(console: Console, line: str) -> None:
    """Print a line as it is: names are there to be copied, whatever the width."""
    console.print(line, soft_wrap=True, highlight=False)


def seconds_per_image(measured: Iterable[Measurement]) -> dict[str, float]:
    """Return, by model, the seconds of training per image, from runs without PGD."""
    seconds: dict[str, float] = {}
    images: dict[str, float] = {}
    sizes = {str(t.settings(t.rows[0], c)["model"]): _size(t, c) for t, c in _clean_columns()}
    for m in measured:
        model = str(m.config["model"])
        if m.config["attack"] == "adversarial" or "train-seconds-total" not in m.figures:
            continue
        if model in sizes:
            seconds[model] = seconds.get(model, 0.0) + m.figures["train-seconds-total"]
            images[model] = images.get(model, 0.0) + sizes[model] * m.rounds
    return {model: seconds[model] / images[model] for model in seconds}


def _clean_columns() -> list[tuple[Table, Variant]]:
    return [(table, table.columns[0]) for table in TABLES.values()]


def _size(table: Table, column: Variant) -> float:
    return table.work(table.rows[0], column, rounds=1)


def _estimate(
    table: Table,
    pairs: Iterable[tuple[Variant, Variant]],
    rate: dict[str, float],
    rounds: int | None,
) -> tuple[str, str]:
    work, seconds = 0.0, 0.0
    for row, column in pairs:
        own = table.work(row, column, rounds)
        work += own
        seconds += own * rate.get(str(column.settings["model"]), float("nan"))
    return f"{work / 1e6:.1f}", "-" if seconds != seconds else f"{seconds / 60:.0f} min"
