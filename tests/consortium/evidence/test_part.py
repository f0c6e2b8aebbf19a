"""What the evidence of a run takes of the disk."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedif_consortium.evidence.part import Evidence
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import RunContext
from fedif_flower.runtime.local_grid import LocalGrid
from tests.run.resuming import run_config


@pytest.mark.parametrize(
    ("keep", "required", "copies"), [(True, True, 500), (True, False, 0), (False, True, 0)]
)
def test_room_is_asked_for_the_replies_that_are_kept_as_they_came(tmp_path, keep, required, copies):
    """A hundred rounds of a quarter of twenty; where nobody has to sign, nobody knows how many."""
    settings = {
        "num_clients": 20,
        "fraction_train": 0.25,
        "num_server_rounds": 100,
        "attribution": "simpson",
        "updates.keep": keep,
        "evidence.require-signatures": required,
    }
    loaded = SimpleNamespace(config=run_config(tmp_path, **settings))
    context = RunContext(loaded, LocalGrid(lambda *_: None, 20), RunFolder(tmp_path), "0" * 32)
    assert Evidence().build(context).copies == copies


class SimulatedGrid(LocalGrid):
    """Of nodes without a guard."""

    simulated = True


def test_simulated_clients_cannot_be_made_to_sign(tmp_path):
    """Every reply of every round would be refused."""
    config = run_config(tmp_path, num_clients=2, **{"evidence.require-signatures": True})
    grid = SimulatedGrid(lambda *_: None, 2)
    context = RunContext(SimpleNamespace(config=config), grid, RunFolder(tmp_path), "0" * 32)
    with pytest.raises(ConfigError, match=r"require-signatures = True; allowed: false where"):
        Evidence().build(context)
