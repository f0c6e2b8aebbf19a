"""Attacks from which a model might never recover: updates far too long, constant predictors.

Predictors that give every input the same answer have a loss near ln 10, less than that of an
untrained model, and no client can train one further: a rule that looks at the loss alone may stay
with it for ever. Each of four clients in ten sends another one; what a processor's rounding makes
of their sums must not matter.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.strategies.named import Spoiler, config, run

CLASSES = 10


def spoiled(partition_id: int, trained: np.ndarray) -> np.ndarray:
    """Return what a client sends in place of an array that it trained."""
    of_outputs = trained.shape == (CLASSES,)
    of_hidden = trained.ndim == 1 and not of_outputs
    if partition_id == 0:
        return np.full_like(trained, 9e14)
    if partition_id == 1:
        return np.zeros_like(trained)
    if partition_id == 2 and of_hidden:
        return np.full_like(trained, -100.0)  # No ReLU gives anything.
    if partition_id == 3 and of_outputs:
        return np.linspace(1e4, 0.0, CLASSES, dtype=trained.dtype)  # Always the first class.
    return trained


@pytest.mark.parametrize(
    ("strategy", "bounds"),
    [("fedif", "auto"), ("influence-descent", 0.0), ("fltrust", "auto"), ("afedsv", "auto")],
)
def test_constant_predictors_do_not_stop_training(tmp_path, strategy, bounds):
    settings = {"fraction-train": 1.0, "num-server-rounds": 4}
    own = {f"{strategy}.num-samples": 8} if "sv" in strategy or "s-" in strategy else {}
    chosen = config(
        tmp_path, strategy, **settings, **own, **{"update-clipping": bounds}, attack="none"
    )
    summary, _, _ = run(chosen, Spoiler(spoiled))
    assert summary["failed_rounds"] == 0
    assert summary["test_accuracy"] > 0.6


@pytest.mark.all
@pytest.mark.parametrize("first", [1, 8])
def test_the_model_learns_beside_updates_far_too_long(tmp_path, first):
    """40 % of the members are malicious; accuracy is the mean of the last ten of 12 rounds."""
    settings = {"num-clients": 50, "fraction-train": 0.2, "num-server-rounds": 12}
    settings |= {"attack": "scaling", "malicious-fraction": 0.4, "attack-first-round": first}
    settings |= {"local-epochs": 5, "checkpoint-every": 0}
    bounded, unbounded = (
        run(config(tmp_path, "fedif", **settings, **{"update-clipping": clipping}))[0]
        for clipping in ("auto", 0.0)
    )
    assert bounded["test_accuracy_last_ten"] > unbounded["test_accuracy_last_ten"] + 0.1
