from __future__ import annotations

import json

import pytest

from fedif_flower.run.folder import RunFolder
from fedif_studies.arena.figures import attackers_gain, low_means_auc, read_figures

MALICIOUS = {"1": False, "2": True, "3": False, "4": True}


def test_malicious_clients_are_found_by_low_means():
    values = {"1": [0.9], "2": [0.1, 0.7], "3": [0.3]}  # the second's mean is 0.4
    assert low_means_auc(values, MALICIOUS) == 0.5
    assert low_means_auc({"1": [0.9], "2": [0.1, 0.7]}, MALICIOUS) == 1
    assert low_means_auc({"1": [0.9], "3": [0.3]}, MALICIOUS) is None


def test_attackers_are_paid_the_sum_of_what_they_contributed_and_never_less_than_nothing():
    contributions = {"1": [3.0, -1.0], "2": [0.5, 0.5], "3": [-4.0], "4": [-2.0, 1.0]}
    # Malicious: 1 and 0; honest: 2 and 0.
    assert attackers_gain(contributions, MALICIOUS) == 0.5
    assert attackers_gain({"1": [1.0], "2": [0.0]}, MALICIOUS) == 0
    assert attackers_gain({"1": [-1.0], "2": [1.0]}, MALICIOUS) is None
    assert attackers_gain({"2": [1.0]}, MALICIOUS) is None


@pytest.mark.parametrize(
    ("decrease", "remainder", "gain"), [(3.0, 0.0, 0.5), (-1.0, -4.0, None), (None, None, None)]
)
def test_a_runs_figures_are_read_from_its_files(decrease, remainder, gain, tmp_path):
    summary = {
        **{"test_accuracy_last_ten": 0.8, "attack_success": None},
        **{"malicious_weight_share": 0.25, "aggregation_seconds_per_round": 0.003},
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "clients.csv").write_text(
        "round,client_id,malicious,weight\n1,1,0,0.75\n1,2,1,0.25\n"
    )
    if decrease is not None:
        (tmp_path / "attribution_rounds.csv").write_text(
            f"round,decrease,remainder\n1,{decrease},{remainder}\n"
        )
        (tmp_path / "attribution.csv").write_text("round,client_id,contribution\n1,1,2\n1,2,1\n")
    assert read_figures(RunFolder(tmp_path)) == {
        "accuracy": "0.8",
        "attack-success": "",
        "malicious-weight": "0.25",
        "weight-auc": "1",
        "attribution-auc": "" if decrease is None else "1",
        "attackers-gain": "" if gain is None else "0.5",
        "aggregation-seconds": "0.003",
    }
