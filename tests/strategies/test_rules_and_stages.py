"""Robust rules, and stages of a user's own and of a run config, in real rounds."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedif_flower import FedAvg, FedIF
from fedif_flower.aggregators import AlignIns, DeepSight, FedAdp, Flame, Krum, Median, SignGuard
from fedif_flower.attribution.credit import CreditBounds
from fedif_flower.combining import combine, move_model
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import Aggregation, ModelVectors
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import Clip, FedAvgM, LossBound, MaxLength, Stage, Stages
from fedif_flower.strategies import RobustRule, ScoredStrategy, Setup, SFedAvg
from fedif_flower.strategies.config import configured_stages
from fedif_flower.valuation import InfluenceValuation, Scores
from tests.rounds import a_round
from tests.server.hostile import Clients, reply_of
from tests.strategies.lines import (
    BASE,
    ROUNDING,
    Movers,
    Shifted,
    attributed,
    bowl,
    column,
    play,
    point,
    threshold_validation,
    values,
)
from tests.strategies.named import config

STEPS = [[1.0, 9.0], [2.0, -3.0], [7.0, 0.0], [8.0, 2.0], [100.0, -50.0]]
LONG = [[3.0, 0.0], [4.0, 0.0], [90.0, 0.0]]


@pytest.mark.parametrize(
    ("rule", "steps", "stages", "expected"),
    [
        (Median(), STEPS, (), [7, 0]),
        # Lengths are bounded before the rule sees them.
        (Median(), LONG, [Clip(1.0)], [4, 0]),
        # A rule of one's own is a function.
        (lambda updates: updates.client_updates[0], STEPS, (), [1, 9]),
    ],
)
def test_the_parameters_move_by_the_rule(rule, steps, stages, expected):
    params, (report,) = play(RobustRule(rule, stages=stages, **BASE), point(), Movers(steps))
    assert params.tolist() == pytest.approx(expected, rel=1e-5)
    assert column(report, "weight") == [None] * len(steps)


def test_flame_adds_little_noise_that_the_seed_decides():
    def of(noise: float, seed: int = 0):
        strategy = RobustRule(Flame(noise=noise), **BASE | {"setup": Setup(seed, "cpu")})
        params, (report,) = play(strategy, point(), Movers([[1.0, 1.0]] * 5))
        assert column(report, "weight") == pytest.approx([0.2] * 5)
        return params

    still, noisy = of(0.0), of(0.1)
    assert still.tolist() == pytest.approx([1, 1])
    assert torch.equal(noisy, of(0.1))
    assert not torch.equal(noisy, of(0.1, seed=1))
    assert 0 < float((noisy - still).norm()) < 5 * 0.1 * 2**0.5 * 2**0.5


@pytest.mark.parametrize(
    "rule",
    [
        Flame(noise=0.0),
        AlignIns(),
        SignGuard(longest=100.0, share=1.0),
        DeepSight(nn.Linear(2, 2), (torch.eye(2), torch.arange(2)), samples=3),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_what_a_clip_shortens_a_rule_shortens_no_further_than_to_its_own_bound(rule):
    """Lengths 1, 1, 1, 1 and 10, bounds 2 and 1: each moves the model by a fifth of 1.

    Buffers, whose changes are as long as each other, move by the plain mean.
    """
    updates = torch.full((5, 6), 6**-0.5)
    updates[4] *= 10
    stages = Stages([Clip(2.0)])
    staged = stages.before(a_round(updates, buffer_updates=torch.ones(5, 1)))
    vectors, aggregation = stages.combined(staged, rule(staged))
    assert float(vectors.params.norm()) == pytest.approx(1.0)
    assert vectors.buffers.item() == pytest.approx(1.0)
    assert aggregation.applied.tolist() == pytest.approx([0.2] * 4 + [0.02])
    assert aggregation.shortening.tolist() == pytest.approx([1] * 4 + [0.2])


def test_a_rule_that_makes_a_step_leaves_none_to_choose():
    with pytest.raises(
        ConfigError, match=r"LossBound chooses among steps by weights, and Median\(\) "
    ):
        RobustRule(Median(), stages=[LossBound()], **BASE)


class Chooses(Stage):
    """Takes other weights than the strategy's."""

    def choose(self, proposal):
        return proposal.move(torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64))


def test_records_and_bounds_of_credit_have_the_weights_that_a_stage_took_instead():
    """The first of three members with as many examples has 9/4 of the usual weight, not 1."""
    bounds = CreditBounds(length=0, borrowed=0, weight=2)
    strategies = []

    def strategy_of(held_out, **base):
        strategies.append(FedAvg(stages=[Chooses()], **base))
        return strategies[0]

    steps = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    attribution = attributed(strategy_of, Movers(steps), bounds=bounds)
    (report,) = strategies[0].history.rounds
    assert column(report, "weight") == [0.75, 0.25, 0.0]
    clients = attribution.rounds[0].clients
    shares = [client.credited / client.contribution for client in clients[:2]]
    assert shares == pytest.approx([8 / 9, 1.0])


class Last:
    gives_weights = True

    def __call__(self, updates):
        return Aggregation(weights=torch.eye(updates.num_clients)[-1])


def test_a_rule_of_ones_own_may_give_weights_and_says_so():
    params, (report,) = play(RobustRule(Last(), **BASE), point(), Movers(STEPS))
    assert params.tolist() == [100, -50]
    assert column(report, "weight") == [0, 0, 0, 0, 1]
    mute = RobustRule(Last().__call__, **BASE)  # Which does not say so.
    mute.start(LocalGrid(Movers(STEPS), 5), model_arrays(point()), num_rounds=1)
    assert mute.history.rounds[0].reason == (
        "RobustRule.weigh returned an Aggregation of weights float32 [5]; allowed: a step [d], of "
        "shape [2], as the rule's gives_weights = False says"
    )


def test_a_strategy_of_ones_own_that_returns_a_step_says_so():
    class Steps(FedAvg):
        def weigh(self, updates):
            return updates.client_updates.mean(dim=0)

    mute = Steps(**BASE)
    mute.start(LocalGrid(Movers(STEPS), 5), model_arrays(point()), num_rounds=1)
    assert mute.history.rounds[0].reason == (
        "Steps.weigh returned float32 [2]; allowed: an Aggregation of weights [m], of shape [5], "
        "as its combines_updates = True says"
    )
    own = Steps(**BASE)
    own.combines_updates = False
    play(own, point(), Movers(STEPS))


def test_a_rule_whose_weights_rescale_updates_says_so():
    class Twice(Last):
        def __call__(self, updates):
            weights = torch.full((updates.num_clients,), 2 / updates.num_clients)
            return Aggregation(weights, rescaling=torch.full_like(weights, 2.0))

    mute = RobustRule(Twice(), **BASE)
    play(mute, point(), Movers(LONG))
    assert "its sets_lengths has to say so" in mute.history.rounds[0].reason
    rule = Twice()
    rule.sets_lengths = True
    params, _ = play(RobustRule(rule, **BASE), point(), Movers([[1.0, 0.0], [3.0, 2.0]]))
    assert params.tolist() == [4, 2]


class Senders(Clients):
    """Partition p sends ``models[p]``, whatever it received."""

    def __init__(self, models: list[list[float]]) -> None:
        super().__init__()
        self.steps = models

    def train(self, message, partition_id):
        names = message.content.array_records["arrays"]
        values = zip(names, self.steps[partition_id], strict=True)
        arrays = {name: pack_array(np.full(names[name].shape, v, np.float32)) for name, v in values}
        return reply_of(message, arrays, {"num-examples": 10})


def far_away() -> Shifted:
    """A model from which the way to 0.7 and back is not the way that it was."""
    model = Shifted()
    with torch.no_grad():
        model.weight.fill_(123.456)
        model.shift.fill_(-98.7654)
    return model


MODELS = [[60.0, 0.0], [0.7, 0.1], [0.7, 0.1]]  # Of weight and buffer; the second is chosen.


def test_the_model_that_krum_chooses_is_copied_bit_for_bit():
    setup = {"setup": Setup(device="cpu", trainable_keys=["weight"])}
    params, (report,) = play(RobustRule(Krum(), **BASE | setup), far_away(), Senders(MODELS))
    assert column(report, "weight") == [0, 1, 0]
    assert params.tolist() == torch.tensor([0.7, 0.1]).tolist()


def test_a_model_that_is_shortened_is_not_copied():
    # Updates are 63, 122.756 and 122.756 long.
    params, _ = play(RobustRule(Krum(), stages=[Clip(0.5)], **BASE), far_away(), Senders(MODELS))
    assert params[0].item() == pytest.approx(123.456 - 0.5 * 122.756, rel=ROUNDING)
    params, _ = play(RobustRule(Krum(), stages=[MaxLength(1.0)], **BASE), point(1), Senders(WIDE))
    assert params.item() == pytest.approx(1.0, rel=ROUNDING)


WIDE = [[5.0], [5.0], [5.0]]
NUMBERS = st.floats(-1e6, 1e6, width=32)


@given(NUMBERS, st.lists(NUMBERS, min_size=1, max_size=4), st.booleans())
def test_one_that_counts_whole_is_what_was_sent_and_any_other_sum_is_combined(before, sent, whole):
    models, start = torch.tensor([sent]).T, torch.tensor([before])  # [m, 1], [1]
    updates = a_round(
        models - start,
        model=ModelVectors(start, torch.zeros(0)),
        sent=ModelVectors(models, torch.zeros(len(sent), 0)),
    )
    coefficients = torch.zeros(len(sent), dtype=torch.float64)
    coefficients[-1] = 1.0 if whole else 0.5
    params, _ = move_model(updates, coefficients, coefficients)
    combined = combine(start, updates.client_updates, coefficients)
    assert torch.equal(params, models[-1] if whole else combined)


def gives(answer, *, weights: bool):
    """A rule of one's own that gives weights, or a step."""

    def rule(updates):
        return answer(updates)

    rule.gives_weights = weights
    return rule


def uneven(updates):
    return Aggregation(torch.ones(5) / 5, scores=torch.ones(3))


def listed(updates):
    return Aggregation(torch.ones(5) / 5, scores=[1.0, 2.0, 3.0, 4.0, 5.0])


NOT_FINITE = torch.tensor([1.0, 0.0, 0.0, 0.0, torch.nan])


def in_numpy(updates):
    return Aggregation(np.full(5, 0.2))


class Unwrapped(InfluenceValuation):
    """Returns the values of its scores alone."""

    def score(self, updates):
        return super().score(updates).values


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (
            RobustRule(gives(lambda _: torch.ones(2, 1), weights=False), **BASE),
            "returned float32 [2, 1]; allowed: a step [d], of shape [2]",
        ),
        (
            RobustRule(gives(lambda _: torch.ones(()), weights=False), **BASE),
            "returned float32 []; allowed: a step [d], of shape [2]",
        ),
        (RobustRule(gives(lambda _: Aggregation(torch.ones(3)), weights=True), **BASE), "[5]"),
        (
            RobustRule(gives(uneven, weights=True), **BASE),
            "scores have the shape [3] for 5 clients",
        ),
        (
            RobustRule(gives(listed, weights=True), **BASE),
            "scores are of type list; allowed: a tensor",
        ),
        (
            RobustRule(gives(lambda _: Aggregation(NOT_FINITE), weights=True), **BASE),
            "RobustRule.weigh returned weights that are not finite; allowed: a number",
        ),
        (RobustRule(gives(in_numpy, weights=True), **BASE), "NumPy array float64 [5]; allowed"),
        (ScoredStrategy(Unwrapped(bowl()), **BASE), "Unwrapped.score returns Tensor; allo"),
    ],
)
def test_an_answer_of_another_shape_fails_the_round_and_is_told(strategy, reason):
    with pytest.raises(TrainingFailedError, match=re.escape(reason)):
        strategy.start(LocalGrid(Movers(STEPS), 5), model_arrays(point()), num_rounds=3)
    assert [report.failed for report in strategy.history.rounds] == [True] * 3


MEAN = torch.full((5, 5), 0.2, dtype=torch.float64)


class Means(Stage):
    """Puts the round's mean in the place of each update, in one way or another."""

    def __init__(self, way) -> None:
        self.way = way

    def before(self, updates):
        return self.way(updates, MEAN.to(updates.client_updates) @ updates.client_updates)


def by_replacing(updates, means):
    return replace(updates, client_updates=means)


def in_place(updates, means):
    updates.client_updates.copy_(means)
    return updates


def dropping(updates, _):
    """Drops rows, where factors of 0 would leave clients out."""
    return replace(
        updates,
        client_ids=updates.client_ids[:1],
        num_examples=updates.num_examples[:1],
        client_updates=updates.client_updates[:1],
        squared_norms=updates.squared_norms[:1],
        buffer_updates=updates.buffer_updates[:1],
        counters=updates.counters[:1],
    )


def by_exchanging_names(updates, _):
    return replace(updates, client_ids=updates.client_ids[::-1])


def by_another_matrix(updates, means):
    return replace(updates, client_updates=means, mixing=MEAN[:, :3])


def one_group(updates, _):
    mixed = updates.mixed(MEAN[:1])
    return replace(mixed, client_ids=updates.client_ids[:1], num_examples=updates.num_examples[:1])


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (by_replacing, "of which clients' updates they are made: return updates.mixed("),
        (in_place, "changes updates without saying of which clients' updates"),
        (dropping, "changes updates without saying of which clients' updates"),
        (by_exchanging_names, "changes updates without saying of which clients' updates"),
        (by_another_matrix, "changes updates without saying of which clients' updates"),
        (one_group, "makes 1 rows of 5; a stage that makes groups has makes_groups = True"),
    ],
)
def test_a_stage_that_does_not_say_whose_a_row_is_fails_the_round(way, reason):
    strategy = RobustRule(Krum(), stages=[Means(way)], **BASE)
    strategy.start(LocalGrid(Movers(STEPS), 5), model_arrays(point()), num_rounds=1)
    (report,) = strategy.history.rounds
    assert report.failed
    assert report.reason.startswith("stage Means ")
    assert reason in report.reason
    assert strategy.model.vectors.params.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (lambda updates: None, "stage Own: before returns NoneType; allowed: RoundUpdates"),
        (lambda updates: replace(updates, factors=0.5), "stage Own: factors = 0.5; allowed: a te"),
        (lambda updates: replace(updates, factors=torch.ones(4)), "for each of 5 updates"),
        (lambda updates: replace(updates, factors=torch.full((5,), 2.0)), "a share in [0, 1]"),
        (
            lambda updates: replace(updates, buffer_factors=torch.full((5,), math.nan)),
            "stage Own: buffer_factors = [nan, nan, nan, nan, nan]; allowed",
        ),
    ],
)
def test_a_stage_that_returns_no_round_or_shortens_by_no_share_is_named(way, reason):
    class Own(Stage):
        def before(self, updates):
            return way(updates)

    strategy = RobustRule(Median(), stages=[Own()], **BASE)
    strategy.start(LocalGrid(Movers(STEPS), 5), model_arrays(point()), num_rounds=1)
    assert reason in strategy.history.rounds[0].reason


@pytest.mark.parametrize("combines_updates", [True, False])
def test_a_rule_that_changes_updates_in_place_fails_the_round(combines_updates):
    def halving(updates):
        updates.client_updates.mul_(0.5)
        return Aggregation(updates.num_examples / updates.num_examples.sum())

    halving.combines_updates = combines_updates
    strategy = RobustRule(halving, **BASE)
    strategy.start(LocalGrid(Movers(STEPS), 5), model_arrays(point()), num_rounds=1)
    (report,) = strategy.history.rounds
    assert report.failed
    assert "changes updates in place while it weighs them" in report.reason
    assert strategy.model.vectors.params.tolist() == [0, 0]


def by_matrix(updates, _):
    return updates.mixed(MEAN)


def unchanged(updates, _):
    return replace(updates, client_updates=updates.client_updates.clone())


def test_of_updates_that_a_stage_mixes_each_member_is_credited_with_its_part():
    # The model moves by (2, 1), which members 1 to 4 made: from (4, 2) halfway down to 2.5.
    steps = [[0.0, 0.0], [5.0, 0.0], [0.0, 5.0], [5.0, 0.0], [0.0, 0.0]]

    def krum(_, **base):
        return RobustRule(Krum(), stages=[Means(by_matrix)], **base)

    (found,) = attributed(krum, Movers(steps), rule="simpson").rounds
    assert found.decrease == pytest.approx(7.5, rel=ROUNDING)
    # The mean slope along the way is -3 in x and -1.5 in y; each moves by a fifth of its update.
    expected = [0.0, 3.0, 1.5, 3.0, 0.0]
    assert values(found) == pytest.approx(expected, rel=10 * ROUNDING, abs=1e-6)


@pytest.mark.parametrize(
    ("strategy_with", "part"),
    [
        (lambda part: FedAvg(stages=[part], **BASE), FedAvgM(0.9, 1.0)),
        (lambda part: RobustRule(part, **BASE), FedAdp()),
    ],
)
def test_what_remembers_rounds_is_not_another_strategy_s_too(strategy_with, part):
    """The second run would go on with the first one's sum of steps, or its angles."""
    clients = Movers([[1.0, 0.0]] * 3)
    first = strategy_with(part)
    play(first, point(), clients)
    name = type(part).__name__
    with pytest.raises(ConfigError, match=rf"^{name}\(.*\) remembers the rounds of another"):
        play(strategy_with(part), point(), clients)
    resumed = strategy_with(type(part)())
    resumed.load_state_dict(first.state_dict())
    play(resumed, point(), clients)


def test_a_step_in_another_dtype_moves_the_model_in_its_own():
    """A third in float64 is none in float32: who sends the model back has moved by nothing."""
    seen = []

    def third(updates):
        seen.append(updates.client_updates.clone())
        return torch.full((2,), 1 / 3, dtype=torch.float64)

    strategy = RobustRule(third, **BASE)
    params, _ = play(strategy, point(), Movers([[0.0, 0.0]] * 3), rounds=2)
    assert [updates.dtype for updates in seen] == [torch.float32] * 2
    assert seen[1].tolist() == [[0.0, 0.0]] * 3
    assert params.tolist() == pytest.approx([2 / 3, 2 / 3])


def test_rows_that_are_copied_as_they_are_need_no_matrix():
    params, _ = play(FedAvg(stages=[Means(unchanged)], **BASE), point(), Movers([[5.0, 0.0]] * 5))
    assert params.tolist() == pytest.approx([5, 0])


class Elsewhere(Stage):
    """Leads to a point of its own."""

    def choose(self, proposal):
        return proposal.move(proposal.coefficients)._replace(params=torch.tensor([1.0, 1.0]))


def test_a_stage_that_leads_where_no_updates_do_fails_the_round():
    strategy = FedAvg(stages=[Elsewhere()], **BASE)
    strategy.start(LocalGrid(Movers(STEPS), 5), model_arrays(point()), num_rounds=1)
    (report,) = strategy.history.rounds
    assert (
        "stage Elsewhere: choose returned something else than a result of proposal.move"
        in report.reason
    )
    assert strategy.model.vectors.params.tolist() == [0, 0]


def test_a_rule_is_an_instance():
    with pytest.raises(ConfigError, match=r"rule = .*Krum"):
        RobustRule(Krum, **BASE)


def test_a_client_whose_score_is_no_number_takes_nothing_from_others():
    class Own:
        validation, parameter_names, tied_names = None, ["weight"], {}

        def prepare(self, params, buffers):
            pass

        def score(self, updates):
            return Scores([1, 3, math.nan, 2, -math.inf])

    _, (report,) = play(SFedAvg(Own(), alpha=0.0, **BASE), point(), Movers(STEPS))
    assert column(report, "weight_score") == [1.0, 3.0, 1.0, 2.0, 1.0]
    _, (report,) = play(ScoredStrategy(Own(), **BASE), point(), Movers(STEPS))
    assert column(report, "normalized") == [0.0, 1.0, 0.0, 0.5, 0.0]
    assert column(report, "weight") == pytest.approx([0, 2 / 3, 0, 1 / 3, 0])


def test_counts_of_steps_hide_attackers_where_krum_takes_them_along():
    # Two honest clients beside each other, two that send noise; these took equally long.
    updates, steps = torch.tensor([[0.0], [0.1], [-9.0], [8.0]]), (150, 210, 190, 190)
    found = a_round(
        updates,
        model=ModelVectors(torch.zeros(1), torch.zeros(0), {"steps": torch.tensor(500)}),
        counters=[{"steps": torch.tensor(500 + count)} for count in steps],
    )
    krum = Krum(malicious_fraction=0.5)
    assert krum(found).weights.tolist() == [1.0, 0.0, 0.0, 0.0]
    # One neighbour each: 60^2 + 0.1^2 and about 20^2 for the honest, 17^2 for the others.
    hidden = replace(krum, distances="state")(found)
    assert hidden.weights.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert hidden.scores.tolist()[2:] == [-289.0, -289.0]


# -- stages


class Warmup(Stage):
    """Lets updates of the first rounds count for less: t / 2 of them in round t."""

    seen = 0

    def before(self, updates):
        self.seen += 1
        return replace(updates, factors=min(self.seen / 2, 1.0) * updates.shortening)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_a_stage_of_ones_own_goes_through_real_rounds():
    strategy = FedAvg(stages=[Warmup()], **BASE)
    params, _ = play(strategy, point(), Movers([[4.0, 8.0]] * 3), rounds=3)
    # Half of the first step, then all of it.
    assert params.tolist() == pytest.approx([4 * 2.5, 8 * 2.5])
    other = FedAvg(stages=[Warmup()], **BASE)
    other.load_state_dict(strategy.state_dict())
    params, _ = play(other, point(), Movers([[4.0, 8.0]] * 3))
    assert params.tolist() == pytest.approx([4, 8])


MANY_KEYS = {
    "max-update-length": 9.0,
    "neighbour-mixing": True,
    "assumed-malicious-fraction": 0.25,
    "update-clipping": 3.0,
    "server-optimizer": "fedavgm",
}
MANY = (
    "[MaxLength(max_length=9.0), NearestNeighbours(malicious_fraction=0.25), Clip(multiple=3.0), "
    "LossBound(tolerance=0.1), FedAvgM(momentum=0.9, learning_rate=0.1)]"
)
OWN_SCREEN = {"screen": "fedif_flower.stages:FedAvgM", "FedAvgM.momentum": 0.5}


@pytest.mark.parametrize(
    ("strategy", "keys", "expected"),
    [
        ("fedif", {}, repr(FedIF(threshold_validation(), **BASE).stages)),
        ("shapfed", {}, "[Clip(multiple=2.0)]"),
        ("fedavg", {}, repr(FedAvg(**BASE).stages)),
        ("fedif", {"update-clipping": 0.0}, "[]"),
        ("krum", {"update-clipping": 1.5}, "[Clip(multiple=1.5)]"),
        ("fedavg", OWN_SCREEN, "[FedAvgM(momentum=0.5, learning_rate=0.1)]"),
        ("fedif", MANY_KEYS, MANY),
    ],
)
def test_keys_of_a_run_config_stand_for_stages(tmp_path, strategy, keys, expected):
    assert repr(configured_stages(config(tmp_path, strategy, **keys))) == expected


BUFFERED, OPTIMIZED = {"pace.rounds": "buffered"}, {"server-optimizer": "fedyogi"}


@pytest.mark.parametrize(
    ("strategy", "keys", "words"),
    [
        ("fedavg", OPTIMIZED | {"attribution": "simpson"}, "'off' with server-optimizer 'fedyogi'"),
        ("median", {"attribution": "simpson"}, "attribution = 'simpson'.* with strategy 'median'"),
        ("fedif", {"bucketing": 2}, "bucketing = 2; allowed: 1 with strategy 'fedif', which"),
        ("fools-gold", {"bucketing": 3}, "bucketing = 3; allowed: 1 with strategy 'fools-gold'"),
        ("fedadp", {"bucketing": 2}, "bucketing = 2; allowed: 1 with strategy 'fedadp', which"),
        ("fedavg", BUFFERED, "pace.buffer-size = 0; allowed: >= 1 with pace.rounds 'buffered'"),
        ("fedavg", BUFFERED | {"pace.buffer-size": 2, "pace.quorum": 2.0}, "pace.quorum = 2.0;"),
    ],
)
def test_keys_of_a_run_config_that_do_not_go_together_are_refused(tmp_path, strategy, keys, words):
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, strategy, **keys)
