"""Updates that are mixed before they are weighed: in random groups, or with their neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.aggregators import FedAdp, FoolsGold, Krum, Median
from fedif_flower.errors import ConfigError
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.stages import Bucketing, NearestNeighbours
from fedif_flower.stages.nearest_neighbours import neighbour_mixing
from fedif_flower.strategies import FedAvg, RobustRule
from tests.rounds import a_round
from tests.strategies.lines import BASE, Movers, column, play, point
from tests.strategies.named import config, run


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    """float32 means of a few numbers."""
    torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-5)


def numbered(m: int, **given) -> RoundUpdates:
    """Client k moves by k + 1, of as many examples and ten times as far in a buffer."""
    updates = torch.arange(1.0, m + 1)[:, None]
    return a_round(
        updates,
        num_examples=updates[:, 0].double(),
        buffer_updates=10 * updates,
        counters=[{"steps": torch.tensor(k)} for k in range(m)],
        **given,
    )


@given(m=st.integers(1, 9), size=st.integers(2, 4), seed=st.integers(0, 2**31))
def test_every_client_is_in_one_group_and_counts_in_its_mean(m, size, seed):
    updates = numbered(m, seed=seed)
    grouped = Bucketing(size).before(updates)
    assert grouped.num_clients == len(grouped.client_updates) == -(-m // size)
    members = grouped.mixing > 0  # [groups, m]
    assert members.sum(dim=0).tolist() == [1] * m
    assert sorted(members.sum(dim=1).tolist())[1:] == [size] * (grouped.num_clients - 1)
    means = grouped.mixing @ updates.client_updates.double()
    close(grouped.client_updates, means)
    close(grouped.buffer_updates, 10 * means)
    assert float(grouped.num_examples.sum()) == m * (m + 1) / 2
    counted = [int(counters["steps"]) for counters in grouped.counters]
    assert counted == [max(row.nonzero().flatten().tolist()) for row in members]
    # The groups' weights go back to the clients, in equal parts.
    weights = torch.rand(grouped.num_clients, dtype=torch.float64)
    of_groups = Aggregation(weights=weights, scores=weights, evaluations=7, losses=(1.0, 0.5))
    own = grouped.unmixed(of_groups)
    close(own.weights.sum(), weights.sum())
    assert (own.evaluations, own.losses) == (7, (1.0, 0.5))
    assert own.scores is None or m == 1


def test_groups_are_drawn_anew_for_each_round_and_after_other_mixing():
    first, again, *later = (
        Bucketing(2).before(numbered(8, server_round=t)).mixing for t in (1, 1, 2, 3, 4)
    )
    assert torch.equal(first, again)
    assert any(not torch.equal(first, other) for other in later)
    mixed = Bucketing(2).before(NearestNeighbours(0.5).before(numbered(6)))
    close(mixed.mixing @ numbered(6).client_updates.double(), mixed.client_updates)


@pytest.mark.parametrize("rule", [Median(), Krum(malicious_fraction=0.0)])
def test_a_rule_is_applied_to_the_groups(rule):
    steps = [[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [8.0, 0.0], [16.0, 0.0]]
    strategy = RobustRule(rule, stages=[Bucketing(5)], **BASE)
    params, (report,) = play(strategy, point(), Movers(steps))
    assert params.tolist() == pytest.approx([31 / 5, 0])
    each = 0.2 if isinstance(rule, Krum) else None
    assert column(report, "weight") == pytest.approx([each] * 5)


def test_multi_krum_leaves_out_its_share_of_groups(tmp_path):
    keys = {"bucketing": 2, "fraction-train": 1.0, "assumed-malicious-fraction": 0.4}
    _, _, lines = run(config(tmp_path, "multikrum", **keys, **{"num-server-rounds": 1}))
    # Three of five groups.
    weights = sorted(float(line["weight"]) for line in lines)
    assert weights == pytest.approx([0] * 4 + [1 / 6] * 6)


def test_who_weighs_each_client_refuses_groups():
    with pytest.raises(ConfigError, match=r"stages = \[Bucketing\(size=2\)\]: FedAvg weighs each"):
        FedAvg(stages=[Bucketing(2)], **BASE)


@pytest.mark.parametrize("rule", [FoolsGold(), FedAdp()])
def test_a_rule_that_remembers_each_client_refuses_groups(rule):
    with pytest.raises(ConfigError, match="remember no client"):
        RobustRule(rule, stages=[Bucketing(2)], **BASE)


# -- nearest neighbours

UPDATES = torch.tensor([[0.0], [1.0], [3.0], [100.0]])


@pytest.mark.parametrize(
    ("left_out", "means"),
    [
        (0, [26, 26, 26, 26]),
        (1, [4 / 3, 4 / 3, 4 / 3, 104 / 3]),
        (2, [0.5, 0.5, 2, 51.5]),
        (3, [0, 1, 3, 100]),
    ],
)
def test_each_update_becomes_the_mean_of_those_nearest_to_it(left_out, means):
    mixing = neighbour_mixing(UPDATES, left_out)
    assert (mixing @ UPDATES.double()).flatten().tolist() == pytest.approx(means)
    assert mixing.sum(dim=1).tolist() == pytest.approx([1] * 4)


def test_an_update_is_its_own_neighbour_among_equal_ones():
    """Three are equal, and each is the mean of two: of itself and the first other one."""
    mixing = neighbour_mixing(torch.tensor([[1.0], [1.0], [1.0], [9.0]]), 2)
    own = [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5]]
    assert mixing.tolist() == own


def test_a_round_is_mixed_and_weights_go_back_to_the_clients():
    counters = [{"steps": torch.tensor(count)} for count in (5, 7, 6, 9)]
    mixed = NearestNeighbours(0.5).before(
        a_round(UPDATES, buffer_updates=10 * UPDATES, counters=counters)
    )
    assert [int(row["steps"]) for row in mixed.counters] == [7, 7, 7, 9]
    assert mixed.client_updates.flatten().tolist() == [0.5, 0.5, 2, 51.5]
    assert mixed.buffer_updates.flatten().tolist() == [5, 5, 20, 515]
    assert mixed.squared_norms.tolist() == [0.25, 0.25, 4, 51.5**2]
    own = mixed.unmixed(Aggregation(weights=torch.tensor([0.5, 0.25, 0.25, 0.0]))).weights
    # Rows: (0, 1), (0, 1), (1, 2), (2, 3).
    assert own.tolist() == [0.375, 0.5, 0.125, 0]
    # Nothing was shortened. Where a mean is, those in it are, in part.
    assert mixed.client_shortening.tolist() == [1] * 4
    factors = torch.tensor([1.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    assert replace(mixed, factors=factors).client_shortening.tolist() == [1, 1, 0.75, 0.5]
    factors = torch.tensor([1.0, 1.0, 0.5, 1.0], dtype=torch.float64)
    assert replace(mixed, factors=factors).client_shortening.tolist() == pytest.approx(
        [1, 5 / 6, 0.75, 1]
    )
    # Two mixings are one matrix.
    twice = NearestNeighbours(0.5).before(mixed)
    assert torch.allclose(twice.mixing @ UPDATES.double(), twice.client_updates.double())


def test_updates_that_are_to_be_shortened_are_shortened_first():
    factors = torch.tensor([1.0, 1.0, 1.0, 0.03], dtype=torch.float64)
    mixed = NearestNeighbours(0.5).before(a_round(UPDATES, factors=factors))
    # The last one is 3 by then, as the third.
    assert mixed.client_updates.flatten().tolist() == pytest.approx([0.5, 0.5, 3, 3])
    assert mixed.factors is None
    # Each is in two of the means: how long it is is no weight.
    equal = Aggregation(weights=torch.full((4,), 0.25, dtype=torch.float64))
    assert mixed.unmixed(equal).weights.tolist() == pytest.approx([0.25] * 4)
    assert mixed.client_shortening.tolist() == factors.tolist()
