from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_studies.lab.cells import find_result
from fedif_studies.lab.measurements import from_row
from fedif_studies.lab.spec import read_sweep
from fedif_studies.rows import RESULTS
from tests.studies.lab.small import DEFAULTS, small_cell


def cells(tmp_path, text: str):
    path = tmp_path / "my-sweep.toml"
    path.write_text(text)
    return read_sweep(path, DEFAULTS, tmp_path / "out")


SWEEPS = sorted(RESULTS.glob("*.toml"))


@pytest.fixture
def committed_cells(tmp_path, monkeypatch):
    """A function of a committed sweep's path that returns the settings of its cells."""
    # "auto" is the CNN of the paper for the data of all of them, which nobody needs to read here.
    monkeypatch.setattr("fedif_studies.lab.cells.fingerprint", lambda _: "")
    monkeypatch.setattr(
        "fedif_studies.lab.cells.settled",
        lambda config: config.replace(model="cnn") if config.model == "auto" else config,
    )

    def read(path: Path) -> list[Mapping[str, Scalar]]:
        return [cell.config.to_mapping() for cell in read_sweep(path, DEFAULTS, tmp_path)]

    return read


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_committed_sweep_is_what_its_rows_were_measured_by(committed_cells, path):
    keys = (
        "strategy",
        "attack",
        "model",
        "update-clipping",
        "normalization",
        "num-server-rounds",
        "seed",
    )

    def told(settings: Mapping[str, Scalar]) -> tuple[Scalar | None, ...]:
        return tuple(settings[key] if key in settings else DEFAULTS[key] for key in keys)

    found = committed_cells(path)
    # No row has these settings: there were none yet, and a run took held-out labels as they are.
    assert {(cell["validation.noise"], cell["validation.vet"]) for cell in found} == {
        ("off", False)
    }
    wanted = {told(cell) for cell in found}
    rows = read_rows(path.with_suffix(".csv"))
    assert {told(from_row(row).config) for row in rows} <= wanted


def test_the_page_says_how_many_cells_of_a_sweep_have_rows(committed_cells):
    phrases = []
    for path in SWEEPS:
        num_rows = len(read_rows(path.with_suffix(".csv")))
        num_cells = len(committed_cells(path))
        if 0 < num_rows < num_cells:
            phrases.append(f"`{path.stem}` of {num_rows} in {num_cells}")
    *most, last = phrases
    page = " ".join((RESULTS.parent / "results.md").read_text().split())
    words = f"Others have rows of some cells alone: {', '.join(most)}, and {last}."
    assert words in page


def test_lists_are_axes_seeds_vary_slowest_and_tables_of_cells_share_what_stands_above(tmp_path):
    text = """
        strategy = ["fedavg", "fedif"]
        num-clients = 20
        seeds = 2
        [[cells]]
        attack = "none"
        [[cells]]
        attack = "label-noise"
        malicious-fraction = [0.5, 0.7]
    """
    found = cells(tmp_path, text)
    points = [
        (c.seed, c.strategy, c.attack, c.malicious_fraction) for c in (f.config for f in found)
    ]
    assert points == [
        (seed, strategy, attack, fraction)
        for seed in (0, 1)
        for attack, fractions in (("none", (0.5,)), ("label-noise", (0.5, 0.7)))
        for strategy in ("fedavg", "fedif")
        for fraction in fractions
    ]
    first = found[0].config.run_dir
    assert first.parent == tmp_path / "out" / "my-sweep"
    assert first.name == f"strategy-fedavg_attack-none_seed0-{found[0].digest}"


def test_a_setting_of_a_runs_part_is_said_once_for_all_cells(tmp_path):
    text = 'strategy = ["fedavg", "fedif"]\nvalidation.noise = "off"\npace.ask-more = 2.0\n'
    configs = [cell.config.to_mapping() for cell in cells(tmp_path, text)]
    assert [(c["validation.noise"], c["pace.ask-more"]) for c in configs] == [("off", 2.0)] * 2


def test_cells_whose_names_begin_alike_are_two(tmp_path):
    keys = ("assumed-malicious-fraction", "malicious-fraction", "learning-rate", "fraction-train")
    axes = "\n".join(f"{key} = [0.25]" for key in (*keys, "dirichlet-alpha", "momentum"))
    first, second = cells(tmp_path, f"seeds = 2\n{axes}")
    assert first.name == second.name
    assert first.config.run_dir != second.config.run_dir


def test_cells_that_credit_members_in_other_ways_are_no_cells_of_one_result(tmp_path):
    axes = """
        [[cells]]
        attribution = "off"
        [[cells]]
        attribution = "simpson"
        credit.weight = [0.0, 4.0]
        updates.keep = [false, true]
    """
    digests = {cell.digest for cell in cells(tmp_path, axes)}
    assert len(digests) == 5
    [alone] = cells(tmp_path, 'attribution = "off"')
    [usual] = cells(tmp_path, "seed = 0")
    assert alone.digest == usual.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; allowed: keys of a run config"),
        ("colour = 1", "unknown key 'colour'"),
        ('run-name = "mine"', "run-name in .*my-sweep.*: each cell has its own"),
        ("overwrite = true", "overwrite in .*: --again measures cells again"),
        ("fedif.gamma = []", "fedif.gamma = .*allowed: a list of one or more values"),
        ("fedif.gamma = [0.1, 0.1]", "names the cell 'fedif.gamma-0.1_seed0' twice"),
        ("seeds = 2\nseed = [1]", "seeds = 2; allowed: an integer >= 1, without seed"),
        ('name = "../up"', "name = '../up'; allowed: letters, .* by default, the file's name"),
        ('name = ".up"', "name = '.up'; allowed: letters, .* '.' but not first"),
        ("cells = 3", r"cells: allowed: tables \[\[cells\]\]"),
        ("cells = []", r"cells: allowed: tables \[\[cells\]\]"),
        ("[[cells]]\nseed = 1", "cells: allowed: tables .*; seeds above them"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        cells(tmp_path, text)


def test_a_directory_for_each_configuration(tmp_path):
    cell = small_cell(tmp_path, "name", **{"fedif.gamma": 0.5})
    assert cell.config.run_dir == tmp_path / "group" / f"name-{cell.digest}"
    assert len(cell.digest) == 8
    assert cell.config.model == "mlp"  # "auto" is settled before it is hashed
    assert cell.digest == small_cell(tmp_path / "elsewhere", "other", **{"fedif.gamma": 0.5}).digest


def test_a_result_of_the_same_settings_in_another_table_counts(tmp_path):
    cell, other = (small_cell(tmp_path, "clean", **{"fedif.gamma": g}) for g in (0.3, 0.9))
    elsewhere = tmp_path / "other-table" / f"also-clean-{cell.digest}"
    elsewhere.mkdir(parents=True)
    (elsewhere / "summary.json").write_text("{}")
    assert find_result(cell) == elsewhere
    assert find_result(other) is None
