"""Rounds of strategies that are worked out by hand; Shapley values on a game of three clients."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedif_flower import Validation
from fedif_flower import strategies as of
from fedif_flower.aggregators import FedAdp
from fedif_flower.client.training import train_local
from fedif_flower.errors import ConfigError
from fedif_flower.messages import workspace
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.runtime.local_grid import FIRST_NODE_ID
from fedif_flower.seeding import torch_generator
from fedif_flower.server.setup import Setup
from fedif_flower.stages import Clip, Destination, Proposal, Stage, Stages
from fedif_flower.strategies import influence_descent
from fedif_flower.strategies.fltrust import root_training
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.task import Task
from fedif_flower.valuation import InfluenceValuation
from fedif_flower.valuation.descent import Descent, descend_round
from fedif_flower.valuation.shapley.valuation import SampledOrders, ShapleyValuation
from tests.rounds import a_round
from tests.strategies.lines import (
    BASE,
    PLAIN,
    SHAPLEY,
    STEPS,
    Movers,
    Shifted,
    Threshold,
    bowl,
    column,
    play,
    point,
    threshold_validation,
)


def fedif(*, weight_normalization: bool = True, **weighting: Any) -> of.FedIF:
    """On the loss (w - 5)^2: going up from 0 helps, going down does not."""
    data, mean = (torch.ones(1, 1), torch.full((1, 1), 5.0)), nn.functional.mse_loss
    judge = Validation(point(1), *data, loss_fn=mean, device="cpu")
    valuation = InfluenceValuation(judge, weight_normalization=weight_normalization)
    return of.FedIF(valuation, weighting=of.Weighting(**weighting), **PLAIN)


UP_DOWN_UP = Movers([[1.0], [-1.0], [3.0]], examples=[10, 20, 30])


def test_fedif_prefers_the_client_that_goes_downhill():
    params, (report,) = play(fedif(), point(1), UP_DOWN_UP)
    # Phi = 10, -10, 10 -> Psi = 1, 0, 1 -> Omega = .3, 0, .3 -> p = .5, 0, .5; steps 1 and 3.
    expected = {"score": [10, -10, 10], "normalized": [1, 0, 1], "weight_score": [0.3, 0, 0.3]}
    expected |= {"weight": [0.5, 0, 0.5], "accumulative_influence": [10, -10, 30]}
    for name, values in expected.items():
        assert column(report, name) == pytest.approx(values), name
    assert params.item() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ablation", "weight_scores", "weights"),
    [
        # Phi = 10, -10, 30 -> Psi = .5, 0, 1.
        ({"weight_normalization": False}, [0.15, 0, 0.3], [1 / 3, 0, 2 / 3]),
        ({"round_normalization": False}, [3, -3, 3], [0.5, 0, 0.5]),
        ({"smooth_update": False}, [1, 0, 1], [0.5, 0, 0.5]),
        # Of six clients three were seen, and the others count as their mean: .3 / 1.2 * 6 / 3.
        ({"weight_scope": "population", "num_clients": 6}, [0.3, 0, 0.3], [0.5, 0, 0.5]),
        # More came than there were at the start: K is 3.
        ({"weight_scope": "population", "num_clients": 2}, [0.3, 0, 0.3], [0.5, 0, 0.5]),
    ],
)
def test_each_part_of_fedif_can_be_left_out(ablation, weight_scores, weights):
    _, (report,) = play(fedif(**ablation), point(1), UP_DOWN_UP)
    assert column(report, "weight_score") == pytest.approx(weight_scores)
    assert column(report, "weight") == pytest.approx(weights)


def test_a_valuation_that_another_strategy_prepares_meanwhile_scores_its_own_model():
    """On the loss (w - 5)^2 from w = 0: up is right. From 9 it would be wrong."""
    valuation = fedif().valuation
    updates = a_round(torch.tensor([[1.0], [-1.0]]))
    valuation.prepare(updates.global_params, {})
    valuation.prepare(torch.full((1,), 9.0), {})
    assert valuation.score(updates).values.tolist() == pytest.approx([10.0, -10.0])


class FailsOnce(Stage):
    """Chooses the proposed step, but raises an error in round 1."""

    def choose(self, proposal: Proposal) -> Destination:
        if proposal.updates.server_round == 1:
            raise RuntimeError("a user's stage")
        return proposal.move(proposal.coefficients)


def test_a_round_that_fails_leaves_weight_scores_and_influences_as_they_were():
    """In the second round Omega is 0.3 Psi and INF one round's, as its records say."""
    clients = Movers([[1.0], [-1.0]])
    failing = fedif()
    failing.stages = Stages([FailsOnce()])
    _, (failed, round_2) = play(failing, point(1), clients, rounds=2)
    assert failed.failed
    assert column(failed, "weight_score") == [None, None]
    plain = fedif()
    _, [only] = play(plain, point(1), clients)
    assert column(round_2, "weight_score") == column(only, "weight_score") == [0.3, 0.0]
    assert failing.ledger.scores == plain.ledger.scores
    assert failing.ledger.accumulative_influence == plain.ledger.accumulative_influence


def test_a_round_that_fails_leaves_a_rule_s_memory_as_it_was():
    """FedAdp's mean angle is 0 between updates that are one: its score has no round before."""

    class Angles(FedAdp):
        """Fails in round 1, after it has taken the round in."""

        def __call__(self, updates: RoundUpdates) -> Aggregation:
            answer = super().__call__(updates)
            if updates.server_round == 1:
                raise RuntimeError("a user's rule")
            return answer

    rule = Angles()
    strategy = of.RobustRule(rule, **PLAIN)
    _, (failed, round_2) = play(strategy, point(1), Movers([[1.0], [1.0]]), rounds=2)
    assert (failed.failed, round_2.failed) == (True, False)
    assert rule.state_dict()["clients"]["rounds"].tolist() == [1.0, 1.0]


def test_the_last_step_of_a_descent_is_the_last_that_was_made():
    """Round 2 makes none: in round 3 the last step is still that of round 1."""
    descent = of.InfluenceDescent(bowl(), descent=of.DescentSettings(relative=True), **PLAIN)
    first = torch.tensor([0.0, 0.0])
    second = torch.tensor([0.5, 0.0])
    assert descent._last_step(first) is None
    assert descent._last_step(second).tolist() == [0.5, 0.0]
    assert descent._last_step(second).tolist() == [0.5, 0.0]
    resumed = of.InfluenceDescent(bowl(), descent=of.DescentSettings(relative=True), **PLAIN)
    resumed.load_state_dict(descent.state_dict())
    assert resumed._last_step(second).tolist() == [0.5, 0.0]


class FailsInRoundThree(Stage):
    """Comes to no step in round 3, once the round has been weighed: the model may be why."""

    def choose(self, proposal: Proposal) -> Destination:
        if proposal.updates.server_round == 3:
            raise RuntimeError("no step from here")
        return super().choose(proposal)


def test_a_descent_does_not_take_the_way_back_for_the_last_step(monkeypatch):
    """To 1/4, to 1/2, back to 1/4: the last step is still that from 0 to 1/4."""
    last_steps = []

    def descend(*arguments: Any, last_step: Tensor | None, **settings: Any) -> Descent:
        last_steps.append(None if last_step is None else last_step.tolist())
        return descend_round(*arguments, last_step=last_step, **settings)

    monkeypatch.setattr(influence_descent, "descend_round", descend)
    relative = of.DescentSettings(relative=True)
    base = BASE | {"stages": [FailsInRoundThree()]}
    strategy = of.InfluenceDescent(bowl(), descent=relative, **base)
    movers = Movers([[0.25, 0.0]] * 3)
    params, reports = play(strategy, point(), movers, rounds=4)
    assert [report.status for report in reports] == ["advanced", "advanced", "failed", "advanced"]
    assert params.tolist() == [0.5, 0.0]
    assert last_steps == [None, [0.25, 0.0], [0.25, 0.0], [0.25, 0.0]]


def test_the_model_sent_back_is_worth_nothing_however_few_digits_it_has():
    data = torch.eye(2).half(), torch.tensor([[4.0], [2.0]]).half()
    judge = Validation(point().half(), *data, loss_fn=nn.functional.mse_loss, device="cpu")
    movers = Movers([[0.0, 0.0], [0.3, 0.1], [0.1, 0.2]])
    _, reports = play(of.FedIF(judge, **PLAIN), point().half(), movers, 3)
    assert [column(report, "score")[0] for report in reports] == [0, 0, 0]
    assert [column(report, "accumulative_influence")[0] for report in reports] == [0, 0, 0]


def test_updates_that_do_not_fit_into_memory_lie_in_a_file(monkeypatch):
    in_memory, _ = play(fedif(), point(1), UP_DOWN_UP, rounds=2)
    monkeypatch.setattr(workspace, "SHARE_OF_MEMORY", 0.0)
    strategy = fedif()
    in_file, _ = play(strategy, point(1), UP_DOWN_UP, rounds=2)
    assert strategy.intake.workspace.updates.untyped_storage().filename is not None
    assert torch.equal(in_file, in_memory)


def layers() -> nn.Module:
    """Ten parameters, of which 6 to 7 are the last layer's matrix; 8 to 9 come after it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False), nn.GroupNorm(1, 1))


def test_shapfed_looks_at_the_last_layer_alone():
    honest = [1.0] * 6 + [3.0, 4.0] + [1.0, 1.0]
    opposite_elsewhere = [-1.0] * 6 + [3.0, 4.0] + [-1.0, -1.0]
    opposite_there = [1.0] * 6 + [-3.0, -4.0] + [1.0, 1.0]
    movers = Movers([honest, opposite_elsewhere, opposite_there])
    _, (report,) = play(of.ShapFed(layers(), **PLAIN), layers(), movers)
    assert column(report, "score") == pytest.approx([1.0, 1.0, -1.0])
    assert column(report, "weight_score") == pytest.approx([0.5, 0.5, -0.5])
    assert column(report, "weight") == pytest.approx([0.5, 0.5, 0.0])


def test_shapfed_compares_nobody_with_one_update_that_is_far_longer_than_the_others():
    """With its own Clip(2.0) the mean is 1 + 1 + 1 - 2: the three agree with it."""
    steps = [[0.0] * 6 + [scale * 3.0, scale * 4.0] + [0.0] * 2 for scale in (1, 1, 1, -100)]
    _, (report,) = play(of.ShapFed(layers(), **BASE), layers(), Movers(steps))
    assert column(report, "score") == pytest.approx([1.0, 1.0, 1.0, -1.0])
    assert column(report, "weight") == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


def test_shapfed_goes_by_trainable_layers():
    model = layers()
    model[1].requires_grad_(False)
    # Now the first layer's matrix is the last one trained: entries 0 to 3, two classes.
    movers = Movers([[x, 0.0, 0.0, 1.0] + [0.0] * 6 for x in (1.0, -1.0)])
    _, (report,) = play(of.ShapFed(model, **PLAIN), layers(), movers)
    # Class 0 cancels out, so neither agrees with it; class 1 has both.
    assert column(report, "score") == pytest.approx([0.5, 0.5])
    with pytest.raises(ConfigError, match="no fully connected layer"):
        of.ShapFed(nn.Conv2d(1, 1, 3))


# -- Shapley values


def exact() -> ShapleyValuation:
    return ShapleyValuation(threshold_validation(), estimator="exact")


def test_afedsv_by_hand():
    params, (report,) = play(of.AFedSV(exact(), **PLAIN), Threshold(), Movers(STEPS))
    assert column(report, "score") == pytest.approx(SHAPLEY)
    normalized = [1.0, 15 / 21, 0.0]  # (5 + 10) / (11 + 10)
    assert column(report, "normalized") == pytest.approx(normalized)
    # Omega starts at 0.5; gamma is 0.3.
    omega = [0.7 * 0.5 + 0.3 * psi for psi in normalized]
    assert column(report, "weight_score") == pytest.approx(omega)
    weights = [contribution / sum(omega) for contribution in omega]
    assert column(report, "weight") == pytest.approx(weights)
    expected = sum(weight * step for weight, (step,) in zip(weights, STEPS, strict=True))
    assert params.item() == pytest.approx(expected)
    assert column(report, "accumulative_influence") == [None] * 3


def independent(seed: int = 0, **base: Any) -> of.AFedSV:
    """As AFedSV's authors draw and weigh, of three members, each with chance 1/2."""
    weighting = of.Weighting(initial=0.5, weight_scope="population", num_clients=3)
    settings = {"fraction_train": 0.5, "setup": of.Setup(seed=seed, device="cpu"), **base}
    return of.AFedSV(exact(), weighting=weighting, sampling="independent", **PLAIN | settings)


THREE = [ClientNode(partition_id, 1000 + partition_id) for partition_id in range(3)]


def test_the_authors_of_afedsv_divide_by_the_chance_of_a_member():
    seed = next(s for s in range(50) if len(independent(s).select(THREE, 1)) == 2)
    params, (report,) = play(independent(seed), Threshold(), Movers(STEPS))
    # Of any two of the three the earlier one is worth more: Psi = 1, 0 -> Omega = .65, .35; the
    # third keeps .5. So a = Omega / 1.5 / 0.5, where a round of two of three would have * 3 / 2.
    weights = [0.65 / 0.75, 0.35 / 0.75]
    assert column(report, "weight_score") == pytest.approx([0.65, 0.35])
    assert column(report, "weight") == pytest.approx(weights)
    steps = [STEPS[client.node.node_id - FIRST_NODE_ID][0] for client in report.clients]
    expected = sum(weight * step for weight, step in zip(weights, steps, strict=True))
    assert params.item() == pytest.approx(expected, rel=1e-5)


def test_where_all_come_for_certain_the_authors_weights_sum_to_one():
    _, (report,) = play(independent(fraction_train=1.0), Threshold(), Movers(STEPS))
    assert sum(column(report, "weight")) == pytest.approx(1.0)


def test_members_come_independently_and_all_are_drawn_anew_while_fewer_than_two_do():
    strategy = independent(min_train_nodes=1)
    rounds = [strategy.select(THREE, t) for t in range(1, 1001)]
    assert rounds[:9] == [independent(min_train_nodes=1).select(THREE, t) for t in range(1, 10)]
    # Of 8 outcomes of three tosses 4 have two members or three; three are in one of these.
    sizes = Counter(map(len, rounds))
    assert sizes.keys() == {2, 3}
    assert sizes[3] == pytest.approx(250, abs=5 * math.sqrt(1000 * 3 / 16))
    # Each member is in 3 of the 4.
    drawn = Counter(node.partition_id for nodes in rounds for node in nodes)
    for partition_id in range(3):
        assert drawn[partition_id] == pytest.approx(750, abs=5 * math.sqrt(1000 * 3 / 16))


def test_a_round_has_as_many_members_as_it_needs_however_small_their_chance():
    rare = independent(fraction_train=1e-9)
    assert [len(rare.select(THREE, t)) for t in (1, 2)] == [2, 2]
    assert rare.select(THREE[:1], 1) == THREE[:1]
    needs_three = of.Setup(min_valid_replies=3, device="cpu")
    often = independent(fraction_train=0.6, setup=needs_three)
    assert {len(often.select(THREE, t)) for t in range(1, 21)} == {3}


@pytest.mark.parametrize(
    "pace", [of.Pace(quorum=0.5), of.Pace(ask_more=1.5), of.Pace(late_rounds=1)]
)
def test_chances_are_refused_where_others_take_part_than_were_drawn(pace):
    with pytest.raises(ConfigError, match="sampling = 'independent'; allowed: 'fixed-size' where"):
        independent(setup=of.Setup(pace=pace, device="cpu"))
    with pytest.raises(ConfigError, match="sampling = 'other'; allowed: fixed-size, independent"):
        of.AFedSV(exact(), sampling="other", **PLAIN)


def test_fedsv_weighs_by_the_rounds_own_values():
    _, reports = play(of.FedSV(exact(), **PLAIN), Threshold(), Movers(STEPS), rounds=2)
    assert column(reports[0], "weight") == pytest.approx([21 / 36, 15 / 36, 0.0])
    for report in reports:
        assert column(report, "weight_score") == column(report, "normalized")


@pytest.mark.parametrize("valuation", [SampledOrders, partial(ShapleyValuation, estimator="owen")])
@pytest.mark.parametrize(("members", "least"), [(2, 12), (5, 10)])
def test_fedsv_weighs_identical_members_alike(valuation, members, least):
    """By exact values for two, else in 19 of 20 rounds: of 12, two more may be unlucky."""
    alike = 0
    for seed in range(12):
        given = valuation(threshold_validation(), seed=seed)
        # 2.5 gets two of four right, whoever is in the coalition.
        _, (report,) = play(of.FedSV(given, **PLAIN), Threshold(), Movers([[2.5]] * members))
        alike += column(report, "weight") == pytest.approx([1 / members] * members)
    assert alike >= least


def test_fedsv_tells_a_member_that_harms_from_those_that_help():
    steps = [[2.5], [2.5], [-9.0], [2.5], [2.5]]
    _, (report,) = play(of.FedSV(threshold_validation(), **PLAIN), Threshold(), Movers(steps))
    assert column(report, "normalized")[2] == 0.0
    assert min(w for i, w in enumerate(column(report, "weight")) if i != 2) > 0.1


@pytest.mark.parametrize("given", [threshold_validation(), exact()])
def test_leave_one_out_by_hand(given):
    # u(N) = 1/4: without a 0 is left, without b 0, without c 3/4.
    _, (report,) = play(of.LeaveOneOut(given, **PLAIN), Threshold(), Movers(STEPS))
    assert column(report, "score") == pytest.approx([1 / 4, 1 / 4, -1 / 2])
    assert column(report, "weight_score") == pytest.approx([0.3, 0.3, 0.0])
    assert column(report, "weight") == pytest.approx([0.5, 0.5, 0.0])


def test_s_fedavg_averages_by_examples_and_remembers_relevance():
    movers = Movers(STEPS, examples=[10, 20, 30])
    params, (report,) = play(of.SFedAvg(exact(), **PLAIN), Threshold(), movers)
    assert column(report, "weight") == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert params.item() == pytest.approx((4.5 + 2 * 2.5 - 3 * 3.7) / 6, abs=1e-6)
    # phi starts at 1/3 and keeps 0.75 of it.
    expected = [0.75 / 3 + 0.25 * value for value in SHAPLEY]
    assert column(report, "weight_score") == pytest.approx(expected)
    assert report.evaluations == 8


@pytest.mark.parametrize(("fraction", "is_said"), [(1.0, True), (0.4, False)])
def test_s_fedavg_says_that_it_has_nothing_to_draw(caplog, fraction, is_said):
    own = {"fraction_train": fraction, "min_train_nodes": 1}
    strategy = of.SFedAvg(threshold_validation(), **own, **PLAIN)
    strategy.summary()
    assert ("relevance changes nothing" in caplog.text) is is_said


@pytest.mark.parametrize(
    ("kind", "settings", "is_refused"),
    [
        (of.AFedSV, {}, True),
        (of.AFedSV, {"sampling": "independent"}, False),  # Chance decides how many come.
        (of.SFedAvg, {}, True),  # Relevance decides who is drawn, and not how many.
    ],
)
def test_a_share_that_draws_too_few_is_refused(kind, settings, is_refused):
    setup = Setup(device="cpu", min_valid_replies=2)
    drawing = {"fraction_train": 1 / 3, "min_train_nodes": 1}
    strategy = kind(exact(), **settings, **drawing, **(PLAIN | {"setup": setup}))
    expected = contextlib.nullcontext()
    if is_refused:
        words = "min_valid_replies = 2; allowed: at most 1, as many as fraction_train = 0.33"
        expected = pytest.raises(ConfigError, match=words)
    with expected:
        play(strategy, Threshold(), Movers(STEPS))


@pytest.mark.parametrize("kind", [of.AFedSV, of.SFedAvg])
def test_more_members_than_have_all_their_coalitions_tried_are_refused_untrained(kind):
    class Untrained(Movers):
        def train(self, message, partition_id):
            raise AssertionError("asked to train")

    strategy = kind(exact(), **PLAIN)
    words = "estimator = 'exact'; allowed: another one: a round has 21 members"
    with pytest.raises(ConfigError, match=words):
        play(strategy, Threshold(), Untrained([[1.0]] * 21))


def test_s_fedavg_draws_by_relevance():
    nodes = [ClientNode(partition_id, 1000 + partition_id) for partition_id in range(3)]
    strategy = of.SFedAvg(
        threshold_validation(), alpha=0.0, fraction_train=0.4, min_train_nodes=1, **PLAIN
    )
    strategy.select(nodes, 1)
    # e^phi = 6 : 3 : 1 for the third client, which was never drawn and has 1/3.
    strategy.ledger.update([1000, 1001], 1 / 3 + torch.tensor([6.0, 3.0]).log().double())
    drawn = Counter(strategy.select(nodes, t)[0].partition_id for t in range(2, 1002))
    for partition_id, share in enumerate((0.6, 0.3, 0.1)):
        # Five standard deviations of 1,000 draws.
        spread = 5 * math.sqrt(share * (1 - share) * 1000)
        assert drawn[partition_id] == pytest.approx(1000 * share, abs=spread)


# -- FLTrust

ROOT = (
    torch.tensor([[1.0, 0.5], [-1.0, 0.5], [2.0, 1.0], [-2.0, 1.0]]),
    torch.tensor([0, 1, 0, 1]),
)
TRAINING = TrainingConfig(local_epochs=2, batch_size=2, learning_rate=0.1)


def layer_of_two() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(2, 2, bias=False)


def server_update(server_round: int, moved: Tensor) -> Tensor:
    """Return what the server should learn in a round from a model that has ``moved`` [d]."""
    model = layer_of_two()
    with torch.no_grad():
        model.weight += moved.view(2, 2)
    before = model.weight.detach().clone()
    train_local(model, *ROOT, TRAINING, torch_generator("root-training", 0, server_round))
    return (model.weight.detach() - before).flatten()


@pytest.mark.parametrize("root", [ROOT, [TensorDataset(*ROOT)]])
def test_fltrust_trains_from_each_rounds_model(root):
    first = server_update(1, moved=torch.zeros(4))
    # Two clients go twice as far as the server, and are cut to its length; nobody trusts the third.
    movers = Movers([step.tolist() for step in (2 * first, 2 * first, -first)])
    strategy = of.FLTrust(of.RootTraining(layer_of_two(), *root, training=TRAINING), **PLAIN)
    params, reports = play(strategy, layer_of_two(), movers, rounds=2)
    assert column(reports[0], "weight") == pytest.approx([0.25, 0.25, 0.0], abs=1e-5)
    second = server_update(2, moved=first)
    assert second.norm() < 0.95 * first.norm()
    trust = torch.cosine_similarity(first, second, dim=0).item()
    assert column(reports[1], "score") == pytest.approx([trust, trust, 0.0], rel=1e-4)
    moved = params - layer_of_two().weight.detach().flatten()
    torch.testing.assert_close(moved, first * (1 + second.norm() / first.norm()))


def test_fltrust_brings_a_clipped_update_to_the_server_s_length_as_any_other():
    """All point the server's way, so that the model moves as the server does; the last is long."""
    first = server_update(1, moved=torch.zeros(4))
    movers = Movers([(scale * first).tolist() for scale in (1.0, 1.0, 10.0)])
    root = of.RootTraining(layer_of_two(), *ROOT, training=TRAINING)
    params, _ = play(of.FLTrust(root, stages=[Clip(2.0)], **BASE), layer_of_two(), movers)
    torch.testing.assert_close(params - layer_of_two().weight.detach().flatten(), first)


class Ahead(of.RootTraining):
    """Moves the weight by 0.1, whatever the root data are."""

    def update(self, params, buffers, generator) -> Tensor:
        return torch.full_like(params, 0.1)


@pytest.mark.parametrize("length", [0.01, 0.1, 10.0])
def test_fltrust_averages_buffers_by_trust_whatever_the_lengths(length):
    """Two clients go the server's way, and one the other: the two are trusted alike.

    Their shifts are 1 and 3, so 2 on average.
    """
    root = Ahead(Shifted(), torch.ones(1, 1), torch.ones(1))
    movers = Movers([[length, 1.0], [2 * length, 3.0], [-length, 3.5]])
    weight, shift = play(of.FLTrust(root, **PLAIN), Shifted(), movers)[0].tolist()
    assert weight == pytest.approx(0.1)
    assert shift == pytest.approx(2.0)


def test_fltrust_uses_all_updates_at_the_server_s_length_whoever_is_trusted():
    """Credit goes by these lengths: the last is trusted by nobody, the second is long."""
    root = of.RootTraining(layer_of_two(), *ROOT, training=TRAINING)
    first = server_update(1, moved=torch.zeros(4))
    start = ModelVectors(layer_of_two().weight.detach().flatten(), torch.zeros(0))
    updates = a_round(torch.stack([first, 10 * first, -first / 10]), model=start)
    factors = torch.tensor([1.0, 0.2, 1.0], dtype=torch.float64)
    staged = replace(updates, factors=factors)
    _, aggregation = Stages().combined(staged, of.FLTrust(root, **BASE).weigh(staged))
    lengths = aggregation.length_factors * updates.squared_norms.sqrt()
    assert lengths.tolist() == pytest.approx([float(first.norm())] * 3)
    assert aggregation.weights_alone.tolist() == pytest.approx([0.5, 0.5, 0.0])


@pytest.mark.parametrize(("noise", "step"), [(0.0, 0.5), (0.25, 0.25)])
def test_fltrust_s_own_update_allows_for_wrong_labels(noise, step):
    """One example of class 0, weights of 0: the chance of its label is q = 1/2 either way.

    The gradient in the logits is (a - b) p / q (p - 1, p) with a = 1 - noise and b = noise: half as
    long where a quarter of the labels may be wrong.
    """
    inputs, labels = torch.ones(1, 1), torch.tensor([0])
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    data = (inputs, labels)
    task = Task(
        name="one example",
        model=lambda: model,
        client_data=lambda _: data,
        validation_data=lambda _: data,
        test_data=lambda _: data,
    )
    held_out = Validation(model, inputs, labels, device="cpu").with_noise(noise)
    training = TrainingConfig(learning_rate=1.0, momentum=0.0, local_epochs=1)
    root = root_training(model, data, task, training, held_out)
    update = root.update(torch.zeros(2), {}, torch.Generator())
    assert update.tolist() == pytest.approx([step, -step])


# -- influence descent


def judge(model: nn.Module, inputs, targets) -> Validation:
    return Validation(model, inputs, targets, loss_fn=nn.functional.mse_loss, device="cpu")


def test_influence_descent_by_hand():
    strategy = of.InfluenceDescent(bowl(), gamma=0.5, descent=of.DescentSettings(steps=1), **PLAIN)
    movers = Movers([[1.0, 0.0], [0.0, 1.0]], examples=[10, 30])
    params, (report,) = play(strategy, point(), movers)
    # At (1/4, 3/4) the gradient is (-3/4, 3/4): slopes -9/8 and 3/8, of deviation sqrt(27) / 8.
    odds = math.exp(math.sqrt(3)) / (3 * math.exp(-1 / math.sqrt(3)))
    weight = odds / (1 + odds)
    assert column(report, "weight") == pytest.approx([weight, 1 - weight])
    assert params.tolist() == pytest.approx([weight, 1 - weight])
    assert column(report, "score") == pytest.approx([4 * weight, (1 - weight) * 4 / 3])
    expected = [0.5 + 0.5 * score for score in column(report, "score")]
    assert column(report, "weight_score") == pytest.approx(expected)
    assert list(strategy.weight_scores.values()) == pytest.approx(expected)
    assert report.losses == pytest.approx((9 / 16, (1 - weight) ** 2))
    assert report.evaluations == 2
    # Who claims next to nothing fails no round.
    strategy = of.InfluenceDescent(bowl(), **PLAIN)
    _, (report,) = play(strategy, point(), Movers([[1.0, 0.0]] * 3, examples=[10, 10, 5e-324]))
    assert not report.failed


def test_what_it_descends_is_the_loss_of_the_shortened_updates():
    # The first update would lead far past (1, 0), and lose; cut to 1, it leads there.
    movers = Movers([[100.0, 0.0], [0.0, 0.5], [0.0, 0.5]])
    strategy = of.InfluenceDescent(bowl(), **BASE)
    params, (report,) = play(strategy, point(), movers)
    assert column(report, "weight")[0] > 0.9
    assert params.tolist() == pytest.approx([column(report, "weight")[0], 0.0], abs=0.1)


def test_buffers_are_those_of_the_weights():
    model = Shifted()
    nn.init.ones_(model.weight)  # At zeros the gradient is 0, which would be refused.
    held_out = judge(model, torch.ones(1, 1), torch.zeros(1, 1))
    strategy = of.InfluenceDescent(held_out, descent=of.DescentSettings(steps=1), **PLAIN)
    # Weight and shift: at equal weights the model gives 2 + 3.
    _, (report,) = play(strategy, Shifted(), Movers([[1.0, 2.0], [3.0, 4.0]]))
    first, second = column(report, "weight")
    assert first > second
    assert report.losses == pytest.approx((25.0, (first * 3 + second * 7) ** 2))


def test_a_round_looks_at_a_sample_of_its_own():
    """Each example wants another point, and a round's descent goes where its sample is."""
    held_out = judge(point(1), torch.ones(40, 1), torch.arange(40.0)[:, None])

    def losses(examples: int, last: float = 40.0) -> list[float]:
        descent = of.DescentSettings(examples=examples)
        strategy = of.InfluenceDescent(held_out, descent=descent, **PLAIN)
        _, reports = play(strategy, point(1), Movers([[last / 40], [last]]), rounds=3)
        return [report.losses[0] for report in reports]

    assert losses(0)[0] == pytest.approx(sum((20.5 - k) ** 2 for k in range(40)) / 40)
    assert losses(40) == losses(0) == losses(1000)
    assert losses(1) == losses(1)
    assert losses(1)[0] != losses(0)[0]
    # Where nobody moves far, the root of the loss tells which example a round looks at.
    assert len({round(math.sqrt(loss)) for loss in losses(1, 0.002)}) > 1


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1, 2, 3] * 25, ""),
        ([0, 1, 2, 3] * 24, "only 96 validation examples"),
        ([0, 2] * 50, "2 classes have no validation example, the first of them 1"),
    ],
)
def test_it_says_what_a_validation_set_lacks(labels, words, caplog):
    inputs, targets = torch.ones(len(labels), 2), torch.tensor(labels)
    of.InfluenceDescent(Validation(nn.Linear(2, 4), inputs, targets, device="cpu"))
    assert words in caplog.text
    assert bool(words) == bool(caplog.text)
