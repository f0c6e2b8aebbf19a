"""Whole runs come to what they came to when their figures were last written down."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import goldens
from tests.run.resuming import Killed, killed_at

FIGURES = goldens.read_file()
ANEW = "if that is right, `python -m tests.goldens {}` writes it down"


def test_each_run_has_its_figures():
    for name in set(FIGURES) ^ set(goldens.RUNS):
        pytest.fail(f"{name} is in one of tests/goldens.py and tests/goldens.json alone")


@pytest.mark.parametrize("name", goldens.RUNS)
def test_a_run_comes_to_its_figures(name, tmp_path):
    found = goldens.golden(goldens.run(name, tmp_path))
    found.pop(goldens.DRAWN.get(name), None)
    assert goldens.differences(found, FIGURES[name]) == [], ANEW.format(name)


def test_only_figures_that_moved_are_written_anew(tmp_path, monkeypatch):
    """The others stay, to the digit: another processor would change half of the file's lines."""
    file = tmp_path / "goldens.json"
    file.write_text(goldens.FILE.read_text())
    monkeypatch.setattr(goldens, "FILE", file)
    goldens.write_file(FIGURES)
    assert file.read_text() == Path(goldens.__file__).with_name("goldens.json").read_text()
    written = {"loss": [1.0, 2.0, "accepted"], "gone": [1.0], "longer": [1.0]}
    found = {"loss": [1.00001, 2.1, "failed"], "longer": [1.000001, 3.0], "new": [4.0]}
    assert goldens.kept_where_they_agree(found, written) == {
        "loss": [1.0, 2.1, "failed"],
        "longer": [1.000001, 3.0],
        "new": [4.0],
    }
    assert sorted(goldens.differences(found, written)) == [
        "gone: only one of them has it",
        "longer: 2 lines; written down: 1",
        "loss, line 2: 2.1; written down: 2.0",
        "loss, line 3: failed; written down: accepted",
        "new: only one of them has it",
    ]


@pytest.mark.parametrize("name", ["fedif-attribution", "fedavg-momentum", "afedsv", "scaffold"])
def test_a_run_that_is_killed_and_goes_on_has_the_same_bits(name, tmp_path):
    every = {"checkpoint-every": 2}
    whole = goldens.run(name, tmp_path / "whole", **every)
    with pytest.raises(Killed):
        goldens.run(name, tmp_path / "killed", killed_at(goldens.ROUNDS - 1), **every)
    again = goldens.run(name, tmp_path / "killed", resume="auto", **every)
    models = [torch.load(folder / "model.pt", weights_only=True) for folder in (whole, again)]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert goldens.golden(whole) == goldens.golden(again)
