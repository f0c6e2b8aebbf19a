from __future__ import annotations

import pytest

from fedif_flower.errors import ConfigError
from paper.selection import (
    Selection,
    find_table,
    select,
    table_cells,
)
from paper.tables import TABLES
from tests.sweeps.small import DEFAULTS, make_cifar10_folder


def names(table: str, **selection) -> list[tuple[str, str, int]]:
    chosen = select(TABLES[table], Selection(**selection))
    return [(row.key, column.key, seed) for row, column, seed in chosen]


def test_everything_unless_told_otherwise():
    assert len(names("cifar10")) == 45
    assert len(names("cifar10", seeds=5)) == 225


def test_methods_in_the_order_given_and_seed_by_seed():
    chosen = names("timing", methods=("krum", "fedavg"), seeds=2)
    assert chosen[:3] == [
        ("krum", "cifar10", 0),
        ("krum", "fashion-mnist", 0),
        ("fedavg", "cifar10", 0),
    ]
    assert [seed for _, _, seed in chosen] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("clean", 5),
        ("label-noise*", 20),
        ("*_fedif", 9),
        ("clean_fedif_seed0", 1),
        ("adversarial_0.7*krum*", 2),
    ],
)
def test_patterns(pattern, count):
    assert len(names("cifar10", patterns=(pattern,))) == count


def test_patterns_add_up():
    assert len(names("cifar10", patterns=("clean", "*_0.7_0.7-0.8"))) == 15


def test_what_there_is_not_is_named():
    with pytest.raises(ConfigError, match=r"methods = 'fedsgd'; allowed.*fedavg, fedprox"):
        names("cifar10", methods=("fedsgd",))
    with pytest.raises(ConfigError, match=r"no cell of table 'cifar10'.*clean_fedavg_seed0"):
        names("cifar10", patterns=("gradient*",))
    with pytest.raises(ConfigError, match=r"table = 'mnist'; allowed: cifar10"):
        find_table("mnist")


@pytest.fixture
def image_folder(tmp_path):
    return make_cifar10_folder(tmp_path)


def test_cells_of_two_tables_on_these_files(image_folder, tmp_path):
    selection = Selection(("fedif",), ("clean",), seeds=2, rounds=3, data_dir=str(image_folder))
    tables = [TABLES["cifar10"], TABLES["cifar10-gradient"]]
    cells = table_cells(tables, selection, DEFAULTS | {"num-clients": 10}, tmp_path / "out")
    assert [cell.config.seed for cell in cells] == [0, 0, 1, 1]
    first, shared, other, _ = cells
    assert first.config.run_dir.parent == tmp_path / "out" / "cifar10"
    assert first.config.run_dir.name == f"clean_fedif_seed0-{first.digest}"
    assert shared.config.run_dir.parent == tmp_path / "out" / "cifar10-gradient"
    assert (first.digest, first.data) == (shared.digest, "CIFAR-10 (JPEG)")
    assert first.digest != other.digest
    assert (first.config.num_server_rounds, first.config.model) == (3, "cnn")
