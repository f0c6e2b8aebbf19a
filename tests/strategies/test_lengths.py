"""Updates made far too long: the model learns beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedif_flower.client.app import app
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid

CLIENTS = 50


def accuracy(folder: Path, clipping: float | str, **attack: float) -> float:
    """Return accuracy, the mean of the last ten of 12 rounds; 40 % of the members are malicious."""
    settings = {"num-clients": CLIENTS, "fraction-train": 0.2, "num-server-rounds": 12}
    settings |= {"attack": "scaling", "malicious-fraction": 0.4, "update-clipping": clipping}
    settings |= {"checkpoint-every": 0, "device": "cpu", "output-dir": str(folder)}
    settings |= {key.replace("_", "-"): value for key, value in attack.items()}
    config = RunConfig.from_run_config(RunConfig.defaults() | settings)
    run_dir = run_federation(LocalGrid(app, CLIENTS), config)
    return float(RunFolder(run_dir).summary.read()["test_accuracy_last_ten"])


@pytest.mark.all
@pytest.mark.parametrize("attack", [{}, {"attack_first_round": 8}], ids=["always", "from round 8"])
def test_the_model_learns_beside_updates_far_too_long(attack, tmp_path):
    assert accuracy(tmp_path, "auto", **attack) > accuracy(tmp_path, 0.0, **attack) + 0.1
