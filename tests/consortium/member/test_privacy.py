from __future__ import annotations

import math
import os
from contextlib import closing

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from scipy.stats import norm

from fedif_consortium.evidence.chained_log import read_log
from fedif_consortium.member.node_log import NodeLog
from fedif_consortium.member.outgoing import LeavesSettings, OutgoingPolicy
from fedif_consortium.member.privacy import PrivacyBudget, add_noise, epsilon_of, secure_normal
from fedif_flower.errors import RefusedByMemberError, StorageError
from fedif_flower.messages.arrays import pack_array, view_array

GaussianDpEvent = pytest.importorskip("dp_accounting").GaussianDpEvent
PLDAccountant = pytest.importorskip("dp_accounting.pld").PLDAccountant

TABLE = {"noise-multiplier": 2.0, "clip-length": 0.5, "most-epsilon": 4.0, "metrics": []}
MODEL = np.zeros(1000, np.float32)


def of(values: np.ndarray) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({"w": pack_array(values)})})


@pytest.fixture
def log(tmp_path):
    with closing(NodeLog(tmp_path / "log")) as found:
        yield found


def charge(log, multiplier=2.0, most=4.0) -> tuple[float, int]:
    """Begin anew, as after a restart, and charge one reply; return what all have cost, and many."""
    PrivacyBudget(log, multiplier, 1e-5, most).charge(run_id=7)
    line = read_log(log.folder / "log.txt")[-1]
    assert (line["kind"], line["run"], line["delta"]) == ("privacy", 7, 1e-5)
    return line["epsilon"], line["replies"]


# The accountant.


@pytest.mark.parametrize("costs", [{0.7: 1}, {2.0: 10, 5.0: 4}])
def test_replies_cost_what_the_accountant_of_losses_says(costs):
    accountant = PLDAccountant()
    for multiplier, count in costs.items():
        accountant.compose(GaussianDpEvent(multiplier), count)
    assert epsilon_of(costs, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


# The budget.


def test_a_damaged_file_is_said_at_the_start(log):
    (log.folder / "privacy.json").write_text("{")
    with pytest.raises(StorageError, match=r"privacy\.json is damaged"):
        PrivacyBudget(log, 2.0, 1e-5, 4.0)


def test_the_budget_outlives_restarts_and_changes_of_the_noise(log):
    assert charge(log) == (pytest.approx(epsilon_of({2.0: 1}, 1e-5)), 1)
    assert charge(log)[1] == 2
    assert charge(log, multiplier=5.0) == (pytest.approx(epsilon_of({2.0: 2, 5.0: 1}, 1e-5)), 3)


def test_what_would_exceed_the_budget_is_refused_and_not_charged(log):
    affordable = next(n for n in range(1, 100) if epsilon_of({2.0: n + 1}, 1e-5) > 4)
    costs = [charge(log)[0] for _ in range(affordable)]
    with pytest.raises(RefusedByMemberError, match="most-epsilon = 4") as refused:
        charge(log)
    assert refused.value.reason == "the privacy budget is spent"
    assert costs == sorted(costs)
    assert costs[-1] <= 4
    assert charge(log, most=6.0)[1] == affordable + 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"replies by noise multiplier": {"x": 2}}'])
def test_a_damaged_budget_is_no_fresh_one(log, text):
    (log.folder / "privacy.json").write_text(text)
    with pytest.raises(StorageError, match=r"privacy\.json is damaged"):
        charge(log)


# The noise.


def test_noise_comes_from_the_operating_systems_randomness_and_is_finite(monkeypatch):
    # Words by hand: the lowest bit is the sign, the rest where P(Z < -|z|) lies in 0 to 1/2.
    tails = np.round(norm.cdf([-1.0, -2.5, -6.0]) * 2.0**65).astype(np.uint64)
    words = tails & ~np.uint64(1) | np.array([1, 0, 1], np.uint64)
    monkeypatch.setattr(os, "urandom", lambda size: words.tobytes()[:size])
    assert secure_normal(3) == pytest.approx([1.0, -2.5, 6.0], rel=1e-6)
    monkeypatch.setattr(os, "urandom", lambda size: (b"\x00" * 8 + b"\xff" * 8)[:size])
    assert np.isfinite(secure_normal(2)).all()


@pytest.mark.parametrize("values", [np.zeros(500), np.full(500, 1 / 3), np.full((5, 100), 1e-12)])
def test_noisy_values_lie_on_one_grid_whatever_they_were(values):
    found = add_noise(values, 0.3)
    assert found.shape == values.shape
    steps = found / 2.0**-18  # 0.3 lies in 1/4 to 1/2; the grid is 2^-16 of that
    assert (steps == np.rint(steps)).all()
    assert len(np.unique(found)) > 400


# Together.


def test_a_reply_leaves_shortened_and_with_noise(log):
    policy = OutgoingPolicy(LeavesSettings(**TABLE), log)
    update = np.zeros_like(MODEL)
    update[0] = 1e6
    found = policy.limit_reply(of(MODEL), of(MODEL + update), 7)
    values = view_array(found.array_records["arrays"]["w"]).astype(np.float64)
    # Noise of 2 * 0.5 on 0.5 and 999 zeros: seven standard errors.
    assert abs(values[0] - 0.5) < 7
    assert abs(values[1:].mean()) < 7 / math.sqrt(999)
    assert values[1:].std() == pytest.approx(1.0, abs=7 / math.sqrt(2 * 999))
    assert policy.limit_reply(of(MODEL), of(MODEL + update), 7) != found
    assert [line["replies"] for line in read_log(log.folder / "log.txt")] == [1, 2]


def test_a_reply_without_an_update_costs_nothing(log):
    policy = OutgoingPolicy(LeavesSettings(**{**TABLE, "metrics": ["metrics.loss"]}), log)
    policy.limit_reply(of(MODEL), RecordDict({"metrics": MetricRecord({"loss": 1.0})}), 7)
    with pytest.raises(RefusedByMemberError):
        policy.limit_reply(of(MODEL), RecordDict({**of(MODEL), "x": MetricRecord({"y": 1})}), 7)
    assert read_log(log.folder / "log.txt") == []
    assert not (log.folder / "privacy.json").exists()
