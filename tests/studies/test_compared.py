"""The comparison's cells on federations of a moment, and its tables from rows by hand."""

from __future__ import annotations

import json

from fedif_flower.run.rows import read_rows
from fedif_studies.compared import (
    OUTPUT,
    PAGE,
    Place,
    make_cell,
    result_table,
    with_tables,
)


def row(place: Place, own=(), **figures: float) -> dict[str, str]:
    """What the queue writes of a cell, as far as the tables read it."""
    point = make_cell(place, dict(own)).point
    texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in point.items()}
    return texts | {name.replace("_", "-"): str(value) for name, value in figures.items()}


def test_tables_have_means_and_differences_over_the_same_seeds():
    def rows(method: str, condition: str, *accuracies: float) -> list[dict[str, str]]:
        return [
            row(
                Place(seed, "CIFAR-10", condition, method),
                test_last_ten=accuracy,
                test_last=accuracy + 0.1,
                seconds=4.0,
            )
            for seed, accuracy in enumerate(accuracies)
        ]

    found = [
        *rows("FedAvg", "Dirichlet 0.1", 0.2, 0.4),
        *rows("FedAvg", "label noise", 0.1, 0.1),
        *rows("FedIF", "Dirichlet 0.1", 0.25, 0.47),
        *rows("FedIF", "label noise", 0.15, 0.15),
        *rows("FedAdam", "Dirichlet 0.1", 0.3, 0.9),
        *rows("FedAdam", "label noise", 0.2),
    ]
    table = result_table("CIFAR-10", found, seeds=2)
    lines = {line[0]: line[1:] for line in table.lines}
    assert lines["FedAvg"] == [
        *("2", "30.0 ± 14.1", "-"),
        *("10.0 ± 0.0", "-", "4"),
    ]
    assert lines["FedIF"] == [
        *("2", "36.0 ± 15.6", "+6.0 ± 1.4"),
        *("15.0 ± 0.0", "+5.0 ± 0.0", "4"),
    ]
    assert lines["FedAdam"] == ["1", "30.0", "+10.0", "20.0", "+10.0", "4"]
    assert lines["MOON"] == ["0", *["-"] * 5]
    other = result_table("Fashion-MNIST", found, seeds=2)
    assert {line[1] for line in other.lines} == {"0"}


def test_the_page_has_the_tables_of_the_committed_rows():
    page = PAGE.read_text()
    assert with_tables(page, read_rows(OUTPUT), seeds=3) == page
    without = with_tables(page, [], seeds=3)
    assert "| FedIF | 0 | - |" in without
    assert with_tables(without, read_rows(OUTPUT), seeds=3) == page
