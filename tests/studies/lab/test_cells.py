from __future__ import annotations

import pytest

from fedif_studies.lab.cells import find_result
from tests.studies.lab.small import small_cell


def test_a_directory_for_each_configuration(tmp_path):
    cell = small_cell(tmp_path, "name", **{"fedif.gamma": 0.5})
    assert cell.config.run_dir == tmp_path / "group" / f"name-{cell.digest}"
    assert len(cell.digest) == 8
    assert cell.config.model == "mlp"  # "auto" is settled before it is hashed
    assert cell.digest == small_cell(tmp_path / "elsewhere", "other", **{"fedif.gamma": 0.5}).digest


@pytest.mark.parametrize(
    "changed", [{"fedif.gamma": 0.4}, {"attack": "label-noise"}, {"eval_every": 2}]
)
def test_any_setting_that_can_change_a_result_changes_the_hash(tmp_path, changed):
    assert small_cell(tmp_path, **changed).digest != small_cell(tmp_path).digest


def test_settings_that_cannot_change_a_result_do_not(tmp_path):
    patient = small_cell(
        tmp_path, max_failed_rounds=7, checkpoint_every=1, **{"pace.timeout": 60.0}
    )
    assert patient.digest == small_cell(tmp_path).digest


def test_a_result_of_the_same_settings_in_another_table_counts(tmp_path):
    cell, other = (small_cell(tmp_path, "clean", **{"fedif.gamma": g}) for g in (0.3, 0.9))
    elsewhere = tmp_path / "other-table" / f"also-clean-{cell.digest}"
    elsewhere.mkdir(parents=True)
    (elsewhere / "summary.json").write_text("{}")
    assert find_result(cell) == elsewhere
    assert find_result(other) is None
