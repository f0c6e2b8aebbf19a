from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators import FoolsGold, Krum, Median
from fedif_flower.errors import ConfigError
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.stages import Bucketing, NearestNeighbours
from fedif_flower.strategies import FedAvg, RobustRule, Setup
from tests.strategies.lines import Movers, column, play, point

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    """float32 means of a few numbers."""
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def a_round(m: int = 5, seed: int = 0) -> RoundUpdates:
    updates = torch.arange(1.0, m + 1)[:, None]
    return RoundUpdates(
        server_round=1,
        client_ids=tuple(range(m)),
        num_examples=torch.arange(1.0, m + 1).double(),
        model=ModelVectors(torch.zeros(1), torch.zeros(1)),
        client_updates=updates,
        squared_norms=updates.double().square().sum(dim=1),
        buffer_updates=10 * updates,
        counters=[{"steps": torch.tensor(k)} for k in range(m)],
        seed=seed,
    )


@given(m=st.integers(1, 9), size=st.integers(2, 4), seed=st.integers(0, 2**31))
def test_every_client_is_in_one_group_and_counts_in_its_mean(m, size, seed):
    updates = a_round(m, seed)
    grouped = Bucketing(size).before(updates)
    assert grouped.num_clients == len(grouped.client_updates) == -(-m // size)
    members = grouped.mixing > 0  # [groups, m]
    assert members.sum(dim=0).tolist() == [1] * m
    assert sorted(members.sum(dim=1).tolist())[1:] == [size] * (grouped.num_clients - 1)
    means = grouped.mixing @ updates.client_updates.double()
    close(grouped.client_updates.double(), means)
    close(grouped.buffer_updates.double(), 10 * means)
    assert float(grouped.num_examples.sum()) == m * (m + 1) / 2
    counted = [int(counters["steps"]) for counters in grouped.counters]
    assert counted == [max(row.nonzero().flatten().tolist()) for row in members]
    # The groups' weights go back to the clients, in equal parts.
    weights = torch.rand(grouped.num_clients, dtype=torch.float64)
    own = grouped.unmixed(Aggregation(weights=weights, scores=weights))
    torch.testing.assert_close(own.weights.sum(), weights.sum())
    assert own.scores is None or m == 1


def test_groups_are_drawn_anew_for_each_round():
    first = Bucketing(2).before(a_round(8))
    assert torch.equal(first.mixing, Bucketing(2).before(a_round(8)).mixing)
    later = [Bucketing(2).before(replace(a_round(8), server_round=t)) for t in range(2, 6)]
    assert any(not torch.equal(first.mixing, other.mixing) for other in later)


def test_it_comes_after_other_mixing():
    mixed = Bucketing(2).before(NearestNeighbours(0.5).before(a_round(6)))
    step = mixed.mixing @ a_round(6).client_updates.double()
    close(step, mixed.client_updates.double())


@pytest.mark.parametrize("rule", [Median(), Krum(malicious_fraction=0.0)])
def test_a_rule_is_applied_to_the_groups(rule):
    steps = [[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [8.0, 0.0], [16.0, 0.0]]
    strategy = RobustRule(rule, stages=[Bucketing(5)], **BASE)
    params, (report,) = play(strategy, point(), Movers(steps))
    assert params.tolist() == pytest.approx([31 / 5, 0])
    weights = column(report, "weight")
    assert len(weights) == 5
    if rule.__class__ is Krum:
        assert weights == pytest.approx([0.2] * 5)


def test_who_weighs_each_client_refuses_groups():
    with pytest.raises(ConfigError, match=r"stages = \[Bucketing\(2\)\]: FedAvg weighs each"):
        FedAvg(stages=[Bucketing(2)], **BASE)
    with pytest.raises(ConfigError, match="remember no client"):
        RobustRule(FoolsGold(), stages=[Bucketing(2)], **BASE)
    with pytest.raises(ConfigError, match="size = 1; allowed: an integer >= 2"):
        Bucketing(1)
