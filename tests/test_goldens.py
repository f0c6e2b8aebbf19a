"""Whole runs come to what they came to when their figures were last written down."""

from __future__ import annotations

import json

import pytest
import torch

from tests import goldens
from tests.run.resuming import Killed, killed_at

FIGURES = json.loads(goldens.FILE.read_text())


def test_each_run_has_its_figures():
    assert set(FIGURES) == set(goldens.RUNS)


@pytest.mark.parametrize("name", goldens.RUNS)
def test_a_run_comes_to_its_figures(name, tmp_path):
    found = goldens.golden(goldens.run(name, tmp_path))
    assert set(found) - {goldens.DRAWN.get(name)} == set(FIGURES[name])
    for column, expected in FIGURES[name].items():
        values = found[column]
        assert [v for v in values if isinstance(v, str)] == [
            v for v in expected if isinstance(v, str)
        ], column
        figures = [v for v in values if not isinstance(v, str)]
        # Another processor rounds each step of training otherwise.
        assert figures == pytest.approx(
            [v for v in expected if not isinstance(v, str)], rel=1e-4, abs=1e-5
        ), column


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
