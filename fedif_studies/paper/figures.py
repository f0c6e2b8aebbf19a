"""The figures that the paper prints, by table, row and column: ``figures.csv``.

They are those of the tables of arXiv:2509.25560. Accuracies are test accuracies in percent with
their standard deviations over five seeds; those of the gamma tables are validation accuracies; the
times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedif_flower.run.rows import read_rows

# A value and, where the paper gives one, its standard deviation.
PaperFigure = tuple[float, float | None]


def published(table: str) -> Mapping[str, Mapping[str, PaperFigure]]:
    """Return a table's figures: row -> column -> (value, standard deviation)."""
    found: dict[str, dict[str, PaperFigure]] = {}
    for line in read_rows(Path(__file__).with_name("figures.csv")):
        if line["table"] == table:
            figure = float(line["value"]), float(line["deviation"]) if line["deviation"] else None
            found.setdefault(line["row"], {})[line["column"]] = figure
    return found
