from __future__ import annotations

import pytest

from fedif_flower.run.config import RunConfig
from fedif_studies.paper.cells import cell_name, select
from fedif_studies.paper.tables import TABLES
from tests.studies.lab.small import DEFAULTS


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_cell_is_a_figure_of_the_paper_and_the_other_way_round(table):
    kinds = ("_training", "_aggregation") if table.name == "timing" else ("",)
    cells = {(row.key, c.key + kind) for row in table.rows for c in table.columns for kind in kinds}
    printed = {(row, column) for row, columns in table.paper.items() for column in columns}
    assert cells == printed


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_cell_is_a_valid_configuration_of_its_own(table):
    pairs = [(row, column) for row in table.rows for column in table.columns]
    configs = [
        RunConfig.from_run_config({**DEFAULTS, **table.settings(row, column)})
        for row, column in pairs
    ]
    assert len({config.digest() for config in configs}) == len(pairs)
    assert len({cell_name(row, column, 0) for row, column in pairs}) == len(pairs)
    assert {(c.num_clients, c.clients_per_round, c.local_epochs) for c in configs} == {(100, 10, 5)}
    assert {(c.batch_size, c.learning_rate, c.momentum) for c in configs} == {(16, 0.001, 0.9)}
    assert {c.num_server_rounds for c in configs} == {10 if table.name == "timing" else 100}
    assert {c.dirichlet_alpha for c in configs} == {1.0}


@pytest.mark.parametrize(
    ("table", "row", "column", "value"),
    [
        ("cifar10", "fedif", "label-noise_0.7_0.7-0.8", (51.74, 0.59)),
        ("timing", "afedsv", "cifar10_aggregation", (91.7635, None)),
        ("ablation", "su", "gradient-noise", (37.46, None)),
    ],
)
def test_figures_as_printed(table, row, column, value):
    assert TABLES[table].paper[row][column] == value


@pytest.mark.parametrize(("pattern", "count"), [("*_fedif", 9), ("adversarial_0.7*krum*", 2)])
def test_cells_are_chosen_by_patterns(pattern, count):
    assert len(select(TABLES["cifar10"], patterns=[pattern])) == count
