"""The study of intervals: its cells, and held-out sets whose labels are partly wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from fedif_studies import coverage
from fedif_studies.rows import RESULTS


def test_right_labels_are_cells_without_a_treatment():
    cells = coverage.cells_of({"digits": [60]}, 2, ["FedAvg"], 0.0)
    assert [cell["draw"] for cell in cells] == [0, 1]
    assert "treatment" not in cells[0]


def test_most_held_out_examples_leave_a_rest_of_nine_tenths():
    assert len(coverage.task_of("digits", "").dataset.test) == coverage.TEST_EXAMPLES["digits"]
    # 315 leave 285 of 600, and 0.9 * 315 = 283.5. Of others, 3,000 are looked at: 0.9 * 3,333.3.
    assert coverage.most_held_out("digits") == 315
    assert coverage.most_held_out("fashion-mnist") == 3333


def test_the_command_is_done_with_the_sizes_that_digits_have(capsys):
    """As the page says: all rows are there."""
    coverage.main()
    told = capsys.readouterr().out
    assert "digits: sizes 600 are left out; allowed: 1 to 315\n" in told
    assert "180 of 180 cells have a row\nnothing is measured" in told


def test_a_size_that_digits_do_not_have_is_refused_where_it_is_asked_for():
    with pytest.raises(ConfigError, match="sizes = 600; allowed: 1 to 315 of digits"):
        coverage.main(sizes="60,600")


def test_wrong_labels_are_taken_as_they_are_and_corrected():
    cells = coverage.cells_of({"digits": [60]}, 1, ["FedAvg"], 0.3)
    assert [cell["treatment"] for cell in cells] == ["as it is", "corrected"]


def test_a_held_out_set_has_its_wrong_labels_and_the_loss_that_allows_for_them():
    task = coverage.task_of("digits", "")
    rows = np.arange(100)
    right = _labels(task.held_out(rows, 0))
    as_it_is, corrected = (
        coverage.held_out_of(task, rows, cell)
        for cell in coverage.cells_of({"digits": [100]}, 1, ["FedAvg"], 0.3)
    )
    assert int((_labels(as_it_is) != right).sum()) == 30
    assert torch.equal(_labels(as_it_is), _labels(corrected))
    assert as_it_is.noise == 0
    assert 0.1 <= corrected.noise <= 0.5


def test_the_page_says_what_the_rows_say():
    shares = {}
    for line in coverage.table(read_rows(coverage.WRONG_CSV)).lines:
        _, _, fault, size, _, _, shares_covered, _ = line
        shares[fault, size] = shares_covered.rstrip("%")
    page = " ".join((RESULTS.parent / "methods" / "path-attribution.md").read_text().split())
    plain = [shares["30%, as it is", size] for size in ("120", "300")]
    corrected = [shares["30%, corrected", size] for size in ("120", "300")]
    assert f"in {' and '.join(plain)} of 100 cases" in page
    right = []
    for data, rule, _, size, *_, shares_covered, _ in coverage.table(read_rows(coverage.CSV)).lines:
        if (data, rule) == ("digits", "FedAvg") and size in ("120", "300"):
            right.append(shares_covered.rstrip("%"))
    assert (
        f"they do in {' and '.join(corrected)}; where none is wrong, in {' and '.join(right)} "
        in page
    )


def _labels(validation) -> torch.Tensor:
    return torch.cat([batch.content[-1] for batch in validation.batches])
