"""The comparison's cells on federations of a moment, and its tables from rows by hand."""

from __future__ import annotations

import json

import pytest

from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import read_rows
from fedif_studies import subset
from fedif_studies.compared import (
    CHOICES,
    LEARNING_RATE,
    METHODS,
    OUTPUT,
    PAGE,
    SIZE,
    Place,
    choice_table,
    choices,
    make_cell,
    places,
    result_table,
    with_tables,
)
from fedif_studies.queue import Progress, missing, work_through

TINY = {**SIZE, "num-clients": 3, "num-server-rounds": 1, "local-epochs": 1}


def row(place: Place, own=(), **figures: float) -> dict[str, str]:
    """What the queue writes of a cell, as far as the tables read it."""
    point = make_cell(place, dict(own)).point
    texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in point.items()}
    return texts | {name.replace("_", "-"): str(value) for name, value in figures.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("images") / "digits"
    subset.main(found, "digits", "", 90, 60, 0)
    return found


def test_flower_s_optimisers_have_rows_by_which_they_are_known(tmp_path, folder):
    where = {"output_dir": tmp_path, "results": tmp_path / "rows.csv", "size": TINY}
    cells = {
        method: make_cell(Place(1, "Fashion-MNIST", "label noise", method), folder=folder, **where)
        for method in METHODS
    }
    own = ["FedAvgM", "FedAdam", "FedYogi", "QFedAvg"]
    todo = [cells[method] for method in own]
    assert work_through(todo, "abc", Progress(todo))
    rows = read_rows(tmp_path / "rows.csv")
    assert [row["data"] for row in rows] == ["Fashion-MNIST"] * 4
    assert {(row["seed"], row["revision"], row["poison-ratio-min"]) for row in rows} == {
        ("1", "abc", "0.6")
    }
    assert all(0 <= float(row["test-last-ten"]) <= 1 for row in rows)
    left = missing(list(cells.values()))
    assert [method for method in METHODS if cells[method] in left] == [
        method for method in METHODS if method not in own
    ]


def test_cells_are_those_of_all_methods_and_their_settings_are_allowed():
    assert len(set(places(range(3)))) == 3 * 2 * 2 * len(METHODS)
    assert [place.seed for place in places((0, 1))] == [0] * 4 * len(METHODS) + [1] * 4 * len(
        METHODS
    )
    cells = [make_cell(place, own) for place, own in choices()]
    cells += [make_cell(place) for place in places([0])]
    for one in cells:
        config = RunConfig.from_run_config(one.settings)
        assert (config.local_epochs, config.num_server_rounds) == (2, 20)
    assert len({one.name for one in cells}) == len(set(places([0]))) + len(
        [own for place, own in choices() if make_cell(place, own).point != make_cell(place).point]
    )


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
        *("2", "30.0 ± 14.1", "-", "40.0 ± 14.1"),
        *("10.0 ± 0.0", "-", "20.0 ± 0.0", "4"),
    ]
    assert lines["FedIF"] == [
        *("2", "36.0 ± 15.6", "+6.0 ± 1.4", "46.0 ± 15.6"),
        *("15.0 ± 0.0", "+5.0 ± 0.0", "25.0 ± 0.0", "4"),
    ]
    assert lines["FedAdam"] == ["1", "30.0", "+10.0", "40.0", "20.0", "+10.0", "30.0", "4"]
    assert lines["MOON"] == ["0", *["-"] * 7]
    other = result_table("Fashion-MNIST", found, seeds=2)
    assert {line[1] for line in other.lines} == {"0"}


def test_a_choice_shows_each_value_and_the_best():
    of = {
        value: (place, own)
        for place, own in choices()
        for value in own.values()
        if place.method == "MOON"
    }
    found = [
        row(*of[0.1], validation_last_ten=0.25),
        row(*of[5.0], validation_last_ten=0.5),
    ]
    (line,) = [line for line in choice_table(found).lines if line[0] == "MOON"]
    assert line == ["MOON", "`mu`", "0.1: 25.0, **5: 50.0**"]


def test_the_page_has_the_tables_of_the_committed_rows():
    page = PAGE.read_text()
    assert with_tables(page, read_rows(OUTPUT), seeds=3) == page
    without = with_tables(page, [], seeds=3)
    assert "| FedIF | 0 | - |" in without
    assert with_tables(without, read_rows(OUTPUT), seeds=3) == page


def test_methods_have_what_was_chosen_on_the_validation_split():
    rows = read_rows(OUTPUT)
    for method, (key, _) in CHOICES.items():
        accuracies = {
            float(row[key]): float(row["validation-last-ten"])
            for place, own in choices()
            if place.method == method
            for one in [make_cell(place, own)]
            for row in rows
            if one.is_in([row])
        }
        settings = {"learning-rate": LEARNING_RATE, **METHODS[method]}
        assert max(accuracies, key=accuracies.__getitem__) == settings[key], method
