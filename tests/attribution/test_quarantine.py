from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from io import BytesIO
from types import SimpleNamespace

import pytest
import torch

from fedif_flower import PathAttribution
from fedif_flower.attribution.quarantine import (
    FIRST_PAUSE,
    LEAST_ROUNDS,
    Quarantine,
    far_worse,
    relative_worths,
    upper_bound,
)
from fedif_flower.attribution.records import ClientAttribution, RoundAttribution
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.stages import FedAvgM
from tests.server.hostile import round_of
from tests.strategies.lines import ROUNDING, Movers, fedavg, validation
from tests.strategies.lines import attributed as run

NODES = [ClientNode(i, 1000 + i, is_simulated=True) for i in range(6)]


def attributed(server_round: int, contributions: dict[int, float], coefficient: float = 0.2):
    clients = tuple(ClientAttribution(i, i, coefficient, c) for i, c in contributions.items())
    return RoundAttribution(server_round, 1.0, 0.9, clients)


def quarantine(rounds: list[RoundAttribution], last_round: int = 0) -> Quarantine:
    """Return one that has judged these rounds while rounds up to the last were drawn."""
    policy = Quarantine(SimpleNamespace(rounds=rounds))
    for t in range(1, last_round + 1):
        policy.admit(NODES, t)
    return policy


def steady(server_round: int, of_last: float) -> RoundAttribution:
    """Return a round of six members: five helpful ones that differ a little, and the last."""
    wobble = 0.01 * (server_round % 2)
    honest = {i: 0.1 + 0.01 * i + wobble for i in range(5)}
    return attributed(server_round, honest | {5: of_last + wobble})


@pytest.mark.parametrize(("members", "is_said"), [(4, True), (5, False)])
def test_too_few_members_to_judge_by_are_said_at_the_end(caplog, members, is_said):
    harm = dict.fromkeys(range(members - 1), 0.1) | {members - 1: -5.0}
    rounds = [attributed(t, harm) for t in range(1, 12)]
    policy = quarantine(rounds, last_round=13)
    policy.on_end()
    assert bool(policy.decisions) is not is_said
    words = "quarantine judged nobody: it compares members with each other, which takes at least 5;"
    assert (words in caplog.text) is is_said


def test_worth_is_per_unit_of_the_coefficient_and_relative_to_the_round():
    clients = (
        ClientAttribution(0, 0, 0.5, 0.2),  # 0.4 a unit
        ClientAttribution(1, 1, 0.1, -0.02),  # -0.2 a unit
        ClientAttribution(2, 2, 0.0, 0.0),  # no weight: says nothing
        ClientAttribution(3, 3, -0.5, -0.4),  # taken away from the step: nor does that
    )
    worths = relative_worths(RoundAttribution(1, 1.0, 0.8, clients))
    assert worths == pytest.approx({0: 0.4 / 0.3, 1: -0.2 / 0.3})
    assert relative_worths(attributed(1, {0: 0.0, 1: 0.0})) == {}


class Turning(Movers):
    """From round 2 on, other steps."""

    later = ((-1.0, 0.0), (2.0, 0.0))

    def train(self, message, partition_id):
        if round_of(message) > 1:
            self.steps = [list(step) for step in self.later]
        return super().train(message, partition_id)


def test_what_momentum_carries_on_excuses_nobody():
    """x goes by .1 times 2 to .2, then by .1 (.9 times 2 + .5) to .43: a mean slope of 3.685.

    Of it, the first member's new update has .05 x -1, its earlier one .045 x 2.
    """
    movers = Turning([[2.0, 0.0], [2.0, 0.0]])
    momentum = partial(fedavg, stages=[FedAvgM(momentum=0.9, learning_rate=0.1)])
    _, second = run(momentum, movers, 2).rounds
    turned, steady_one = second.clients
    assert turned.contribution == pytest.approx(3.685 * (0.09 - 0.05), rel=10 * ROUNDING)
    assert turned.carried == pytest.approx(3.685 * 0.09, rel=10 * ROUNDING)
    assert steady_one.carried == pytest.approx(3.685 * 0.09, rel=10 * ROUNDING)
    # By unit -3.685 and 7.37, whose mean size is 5.5275.
    assert relative_worths(second) == pytest.approx({1000: -2 / 3, 1001: 4 / 3}, rel=1e-5)


def test_the_upper_bound_is_that_of_the_one_sided_t_interval():
    # t of 3 degrees of freedom at 95 %: 2.3534 (any table); mean 0, standard deviation 2.
    values = [-math.sqrt(3), -math.sqrt(3), math.sqrt(3), math.sqrt(3)]
    assert upper_bound(values) == pytest.approx(2.3534 * 2.0 / 2.0, abs=1e-4)


def test_who_harms_in_every_round_is_left_out_and_comes_back():
    rounds = [steady(t, of_last=-0.3) for t in range(1, LEAST_ROUNDS + 1)]
    policy = quarantine(rounds)
    # Round t is drawn by what is known of the rounds up to t - 2.
    assert policy.admit(NODES, LEAST_ROUNDS + 1) == NODES
    first = LEAST_ROUNDS + 2
    assert policy.admit(NODES, first) == NODES[:5]
    [decision] = policy.decisions
    assert (decision.partition_id, decision.client_id) == (5, 5)
    # All six take part in every round: a turn is one round.
    assert (decision.server_round, decision.until_round) == (first, first + FIRST_PAUSE)
    assert decision.reason.endswith(" is usual")
    rounds += [attributed(t, dict.fromkeys(range(5), 0.1)) for t in range(first - 1, first + 9)]
    assert policy.admit(NODES, first + FIRST_PAUSE - 1) == NODES[:5]
    assert policy.admit(NODES, first + FIRST_PAUSE) == NODES


def test_the_second_quarantine_is_twice_as_long_and_good_rounds_clear_the_first():
    rounds = [steady(t, of_last=-0.3) for t in range(1, 40)]
    decisions = quarantine(rounds, 41).decisions
    lengths = [d.until_round - d.server_round for d in decisions]
    assert lengths[:2] == [FIRST_PAUSE, 2 * FIRST_PAUSE]
    # Never longer than 64 turns: with looks of 5 rounds, seven pauses take 4 + 8 + ... + 64 + 35.
    always = quarantine([steady(t, of_last=-0.3) for t in range(1, 300)], 301).decisions
    assert [d.until_round - d.server_round for d in always][:6] == [4, 8, 16, 32, 64, 64]
    # Looked at again: as many rounds as at first.
    assert decisions[1].server_round == decisions[0].until_round + LEAST_ROUNDS - 1 + 2
    better = rounds[:8] + [steady(t, of_last=0.1) for t in range(9, 40)]
    assert len(quarantine(better, 41).decisions) == 1


def test_who_is_a_little_below_zero_where_everybody_is_stays():
    # A model that has converged: updates pull against each other.
    even = {0: 0.02, 1: -0.01, 2: 0.01, 3: -0.02, 4: 0.0, 5: -0.015}
    policy = quarantine([attributed(t, even) for t in range(1, 21)])
    assert policy.admit(NODES, 22) == NODES


def test_a_mean_is_bad_five_robust_deviations_below_the_median():
    # Median 0.2; 0.1 is the median distance from it: 0.2 - 5 * 1.4826 * 0.1 = -0.541.
    usual = {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}
    assert quarantine([attributed(t, usual | {4: -0.54}) for t in range(1, 9)], 10).decisions == []
    decided = quarantine([attributed(t, usual | {4: -0.542}) for t in range(1, 9)], 10).decisions
    assert {decision.client_id for decision in decided} == {4}
    assert decided[0].reason.startswith("its updates raised the loss on average of ")


def test_bad_rounds_are_those_far_below_the_half_above_the_median():
    # Median 0.2; above it 0, 0.1 and 0.2 away: 1.4826 * 0.1, five times that is 0.74.
    honest = {0: 0.2, 1: 0.3, 2: 0.4}
    assert far_worse(honest | {3: -0.53, 4: -0.55}) == {4}
    # Attackers below the median do not widen what is usual.
    assert far_worse(honest | {3: -9.0, 4: -0.55}) == {3, 4}
    # Worse than others, and no harm.
    assert far_worse({0: 2.0, 1: 2.0, 2: 2.0, 3: 2.1, 4: 0.1}) == set()
    assert far_worse(honest | {3: -9.0}) == set()  # Too few.


@pytest.mark.parametrize(("bad_of_eight", "first"), [(2, 20), (4, 8)])
def test_who_is_bad_in_some_rounds_of_eight_is_left_out(bad_of_eight, first):
    # The good rounds outweigh the bad ones: its mean is the best of all.
    every = 8 // bad_of_eight
    rhythm = [steady(t, of_last=0.9 if t % every else -0.3) for t in range(1, 30)]
    decisions = quarantine(rhythm, 31).decisions
    assert {decision.client_id for decision in decisions} == {5}
    assert "far worse than others'" in decisions[0].reason
    # By chance: three of 6 rounds 1.5e-4, four of 8 1e-5; four of 16 2.5e-4, five of 20 4e-5.
    assert decisions[0].server_round == first + 2


def test_a_resumed_run_decides_as_the_whole_one():
    rounds = [steady(t, of_last=-0.3) for t in range(1, 20)]
    whole, resumed = quarantine(rounds, 18), quarantine(rounds)
    assert resumed.admit(NODES, 19) == whole.admit(NODES, 19)
    assert resumed.decisions == whole.decisions


def test_a_resumed_run_keeps_the_pauses_of_when_they_were_decided():
    """With 40 members idle, six of them drawn, a turn is 7 rounds; with 10 idle it is 2.

    In round 6 four rounds are known: the pause is 4 x 7 rounds, until 34. With 10 it were 4 x 2.
    """
    forty = [ClientNode(i, 1000 + i, is_simulated=True) for i in range(40)]
    rounds = [steady(t, of_last=-0.3) for t in range(1, 40)]
    whole = Quarantine(SimpleNamespace(rounds=rounds))
    for t in range(1, 8):
        whole.admit(forty, t)
    resumed = Quarantine(SimpleNamespace(rounds=rounds))
    resumed.load_state_dict(torch.load(saved(whole.state_dict()), weights_only=True))
    for t in range(8, 41):
        assert resumed.admit(forty[:10], t) == whole.admit(forty[:10], t)
    assert resumed.decisions == whole.decisions
    first = whole.decisions[0]
    assert (first.server_round, first.until_round) == (6, 34)
    assert resumed.state_dict() == whole.state_dict()


def test_a_turn_is_counted_by_those_who_have_weight():
    """Six of ten have some: of 60 that are idle a member has weight every tenth round."""
    sixty = [ClientNode(i, 1000 + i, is_simulated=True) for i in range(60)]
    weightless = attributed(0, dict.fromkeys(range(6, 10), 0.0), coefficient=0.0).clients
    rounds = []
    for t in range(1, 7):
        weighted = steady(t, of_last=-0.3)
        rounds.append(replace(weighted, clients=weighted.clients + weightless))
    policy = Quarantine(SimpleNamespace(rounds=rounds))
    for t in range(1, 7):
        policy.admit(sixty, t)
    [decision] = policy.decisions
    assert decision.until_round - decision.server_round == 10 * FIRST_PAUSE


def test_a_quarantine_whose_attribution_the_strategy_lacks_is_refused():
    """It would judge nobody, without a word."""
    elsewhere = PathAttribution(validation())
    with pytest.raises(ConfigError, match="Quarantine: its attribution is not among the strategy"):
        run(fedavg, Movers([[1.0, 0.0]] * 3), beside=(Quarantine(elsewhere),))


def saved(state: dict) -> BytesIO:
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file
