"""A class that refuses an argument calls it by the name that the argument has there."""

from __future__ import annotations

from typing import Any

import pytest

from fedif_flower import RFA, AFedSV, FedIF, FedProx, Krum, SFedAvg
from fedif_flower.errors import FedIFError
from tests.strategies.lines import threshold_validation

REFUSED: list[tuple[type, dict[str, object], str]] = [
    (FedIF, {"weight_scope": "all"}, "weight_scope = 'all'; allowed: participants, population"),
    (FedIF, {"gamma": 1.5}, "gamma is 1.5; allowed: 0 < gamma <= 1"),
    (AFedSV, {"shapley_utility": "f1"}, "shapley_utility = 'f1'; allowed: accuracy, loss, score"),
    (AFedSV, {"shapley_samples": 0}, "shapley_samples = 0; allowed: >= 1"),
    (SFedAvg, {"alpha": 1.0}, "alpha = 1.0; allowed: 0 <= alpha < 1"),
    (FedProx, {"proximal_mu": -1.0}, "proximal_mu = -1.0; allowed: >= 0"),
    (FedProx, {"proximal_mu": float("nan")}, "proximal_mu = nan; allowed: >= 0"),
    (Krum, {"malicious_fraction": 1.5}, "malicious_fraction = 1.5; allowed: 0 to 1"),
    (Krum, {"num_selected": 0}, "num_selected = 0; allowed: >= 1"),
    (Krum, {"distances": "models"}, "distances = 'models'; allowed: parameters, state"),
    (RFA, {"iterations": -1}, "iterations = -1; allowed: >= 0"),
    (RFA, {"nu": 0.0}, "nu = 0.0; allowed: > 0"),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), REFUSED)
def test_a_refused_argument_is_named_as_it_is_passed(kind: Any, arguments, message):
    needed = [threshold_validation()] if kind in (FedIF, AFedSV, SFedAvg) else []
    with pytest.raises(FedIFError) as caught:
        kind(*needed, **arguments)
    assert str(caught.value) == message
