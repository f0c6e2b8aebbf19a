"""Each estimator on games whose exact values are at hand; the game of a round."""

from __future__ import annotations

import copy
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import permutations
from time import sleep
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedif_flower.devices import torch_threads
from fedif_flower.errors import ValuationError
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import RoundUpdates
from fedif_flower.tasks.modules import trainable_names
from fedif_flower.valuation import Validation
from fedif_flower.valuation.parallel import JudgePool
from fedif_flower.valuation.shapley import (
    ESTIMATORS,
    CoalitionMemo,
    Estimate,
    Utility,
    exact_shapley,
)
from fedif_flower.valuation.shapley.complementary import _residuals
from fedif_flower.valuation.shapley.estimate import mean_of_draws
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_flower.valuation.shapley.gtg import _relative_change
from fedif_flower.valuation.shapley.valuation import RoundGame, ShapleyValuation
from tests.rounds import a_round

M = 7
TABLE = torch.rand(2**M, generator=Generator().manual_seed(5), dtype=torch.float64)


def game(table: Tensor) -> Utility:
    """The game whose coalition with bits r is worth table[r]."""
    return lambda masks: table[masks.long() @ 2 ** torch.arange(masks.shape[1])]


def additive_game(worth: list[float]) -> Utility:
    return lambda masks: masks.double() @ torch.tensor(worth, dtype=torch.float64)


def counted(utility: Utility) -> tuple[Utility, list[int]]:
    """Return a utility, and how many coalitions it is asked for in each call."""
    asked: list[int] = []

    def ask(masks: Tensor) -> Tensor:
        asked.append(len(masks))
        return utility(masks)

    return ask, asked


def test_glove_game() -> None:
    # One left glove (client 0), two right ones; a pair is worth 1.
    values = exact_shapley(lambda masks: masks[:, 0] & masks[:, 1:].any(dim=1), 3)
    assert values.tolist() == pytest.approx([2 / 3, 1 / 6, 1 / 6])


TABLES = st.integers(1, 5).flatmap(
    lambda m: st.lists(st.floats(-10, 10), min_size=2**m, max_size=2**m)
)


@given(TABLES)
def test_exact_values_are_the_mean_over_all_orders(table: list[float]) -> None:
    m = len(table).bit_length() - 1
    orders = list(permutations(range(m)))
    expected = torch.zeros(m, dtype=torch.float64)
    for order in orders:
        row = 0
        for client in order:
            expected[client] += (table[row + 2**client] - table[row]) / len(orders)
            row += 2**client
    values = exact_shapley(game(torch.tensor(table, dtype=torch.float64)), m)
    torch.testing.assert_close(values, expected)


def test_more_than_twenty_clients_are_refused_with_advice() -> None:
    with pytest.raises(ValuationError, match=r"num_clients <= 20; use complementary_shapley"):
        exact_shapley(lambda masks: masks.sum(dim=1), 21)


GTG = ESTIMATORS["gtg"]
never = {"round_truncation": 0.0, "truncation": 0.0, "tolerance": 0.0}
SAMPLERS = {**ESTIMATORS, "gtg": partial(GTG, **never)}


@pytest.mark.parametrize("name", ["permutation", "complementary", "gtg", "owen"])
def test_estimates_converge_to_the_exact_values(name: str) -> None:
    few, many, repeats = 56, 56 * 64, 100
    generator = Generator().manual_seed(11)

    def estimate(samples: int) -> Estimate:
        return SAMPLERS[name](game(TABLE), M, num_samples=samples, generator=generator)

    exact = exact_shapley(game(TABLE), M)
    estimates = [estimate(few) for _ in range(repeats)]
    runs = torch.stack([found.values for found in estimates])
    spread = runs.std(dim=0)
    # What they say of their own error is what it is; more where draws are of different kinds.
    said = torch.stack([found.errors for found in estimates]).square().mean(dim=0).sqrt()
    most = {"owen": 1.7, "gtg": 1.7}.get(name, 1.3)
    assert ((0.75 * spread < said) & (said < most * spread)).all()
    # Unbiased: the mean of the runs lies within five of its own standard errors.
    assert ((runs.mean(dim=0) - exact).abs() <= 5 * spread / repeats**0.5).all()
    # Converging: 64 times the samples, an eighth of the spread.
    assert ((estimate(many).values - exact).abs() <= 5 * spread / 8).all()


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"complementary"}))
def test_additive_games_are_valued_without_error(name: str) -> None:
    worth = [0.5, -1.0, 0.0, 2.0]
    generator = Generator().manual_seed(0)
    found = ESTIMATORS[name](additive_game(worth), 4, num_samples=3, generator=generator)
    torch.testing.assert_close(found.values, torch.tensor(worth, dtype=torch.float64))
    assert found.resolution < 1e-12


@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4), st.integers(1, 5), st.integers(0, 99))
@example([0.0, 0.0, 1.0, 0.0], 1, 0)
def test_two_clients_are_valued_exactly_by_pairs(table: list[float], samples: int, seed: int):
    utility = game(torch.tensor(table, dtype=torch.float64))
    names = ["permutation", "owen"]
    if abs(table[0] - table[3]) > 1e-9:  # Else GTG looks no further: its round truncation.
        names.append("gtg")
    for name in names:
        generator = Generator().manual_seed(seed)
        found = SAMPLERS[name](utility, 2, num_samples=samples, generator=generator)
        torch.testing.assert_close(found.values, exact_shapley(utility, 2))
        assert found.resolution == 0.0


@pytest.mark.parametrize("name", ["complementary", "gtg", "owen", "permutation"])
@pytest.mark.parametrize(
    ("num_clients", "num_samples", "match"),
    [
        (0, 10, "num_clients is 0; allowed: an integer >= 1"),
        (3, 0, "num_samples is 0; allowed: an integer >= 1"),
        (3, 2.5, r"num_samples is 2\.5; allowed: an integer >= 1"),
    ],
)
def test_a_mean_of_nothing_is_refused(name, num_clients, num_samples, match):
    with pytest.raises(ValuationError, match=match):
        ESTIMATORS[name](
            lambda masks: masks.sum(dim=1).double(),
            num_clients,
            num_samples=num_samples,
            generator=Generator(),
        )


def test_what_chance_may_put_between_equal_clients_by_hand() -> None:
    # Squared differences of the columns: 2, 2 and 8, in the mean 4. Two draws of three clients
    # leave two degrees of freedom, of which the quantile is (2p - 1) / sqrt(2p (1 - p)).
    values, residuals = torch.tensor([0.3, 0.1, 0.2]), torch.tensor([[1.0, 0, -1], [-1, 0, 1]])
    found = Estimate(values.double(), residuals.double())
    p = 1 - 0.05 / (2 * 3)
    assert found.resolution == pytest.approx(2 * (2 * p - 1) / (2 * p * (1 - p)) ** 0.5)
    assert found.errors.tolist() == pytest.approx([2**0.5, 0, 2**0.5])
    assert found._replace(residuals=residuals[:0]).resolution == 0.0
    assert found._replace(residuals=residuals[:1]).resolution == math.inf
    alone = Estimate(values[:1], residuals[:, :1])
    assert alone.resolution == 0.0


def test_the_error_of_a_mean_of_two_draws_by_hand() -> None:
    """0 and 2 deviate by sqrt(2), with one degree of freedom: their mean 1 by sqrt(2) / sqrt(2)."""
    found = mean_of_draws(torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64))
    assert found.values.tolist() == [1.0, 0.0]
    assert found.errors.tolist() == pytest.approx([1.0, 0.0])
    # In a stratum of complementary contributions likewise; the value has it once over m = 1.
    samples, strata = torch.tensor([[0.0], [2.0]]).double(), torch.tensor([[1], [1]])
    sums, counts = torch.tensor([[0.0, 2.0]]).double(), torch.tensor([[0.0, 2.0]]).double()
    in_stratum = Estimate(torch.ones(1), _residuals(samples, strata, sums, counts))
    assert in_stratum.errors.tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("num_samples", [1, 2, 5])
def test_few_samples_of_complementary_contributions_do_not_tell_equal_clients_apart(num_samples):
    """Strata of which there is one draw, or none, are no reason to be sure."""

    def equal(masks: Tensor) -> Tensor:
        size = masks.sum(dim=1).double()
        return size / (size + 1)

    spreads = []
    for seed in range(60):
        generator = Generator().manual_seed(seed)
        found = ESTIMATORS["complementary"](equal, 5, num_samples=num_samples, generator=generator)
        spread = float(found.values.max() - found.values.min())
        spreads.append(spread - max(found.resolution, 1e-12))
    assert sum(spread > 0 for spread in spreads) <= 8


@pytest.mark.parametrize("name", ["permutation", "owen", "complementary", "gtg"])
def test_equal_clients_are_told_to_be_equal_in_most_draws_and_others_are_not(name):
    clients, draws = 5, 60

    def told_apart(utility: Utility) -> int:
        """Return in how many draws the highest and the lowest value differ."""
        count = 0
        for seed in range(draws):
            generator = Generator().manual_seed(seed)
            found = ESTIMATORS[name](utility, clients, num_samples=50, generator=generator)
            spread = float(found.values.max() - found.values.min())
            # Of values near 1: min_max itself takes roundings for none.
            count += spread > max(found.resolution, 1e-12)
        return count

    def equal(masks: Tensor) -> Tensor:
        size = masks.sum(dim=1).double()
        return size / (size + 1)

    def one_is_bad(masks: Tensor) -> Tensor:
        return equal(masks[:, 1:]) - 0.3 * masks[:, 0].double()

    # 95 % are expected; of 60 draws 52 or more in 997 of 1,000 cases.
    assert told_apart(equal) <= draws - 52
    assert told_apart(one_is_bad) == draws


def test_a_memo_passes_each_distinct_row_on_once_in_one_batch() -> None:
    utility, asked = counted(additive_game([1.0, 2.0, 4.0]))
    memo = CoalitionMemo(utility)
    rows = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]]).bool()
    assert memo(rows).tolist() == [5.0, 0.0, 5.0, 7.0]
    assert memo(rows[:3]).tolist() == [5.0, 0.0, 5.0]
    assert memo(torch.tensor([[True, True, True], [False, True, False]])).tolist() == [7.0, 2.0]
    assert asked == [3, 1]
    assert memo.evaluations == 4
    nonsense = CoalitionMemo(game(torch.tensor([1.0, 1.0, 1.0, torch.nan])))
    words = r"nan for the coalition of the round's clients at places \[0, 1\]"
    with pytest.raises(ValuationError, match=words):
        exact_shapley(nonsense, 2)


def test_complementary_by_hand() -> None:
    # u: empty 0, {0} 1, {1} 2, both 4. Size 1: -1 for client 0, +1 for client 1; size 2: 4 each.
    by_hand = game(torch.tensor([0.0, 1.0, 2.0, 4.0]))
    found = ESTIMATORS["complementary"](by_hand, 2, num_samples=1, generator=Generator())
    assert found.values.tolist() == [1.5, 2.5]


def test_gtg_skips_a_round_that_changes_nothing_and_stops_after_enough_orders() -> None:
    utility, asked = counted(lambda masks: 0.01 * masks.all(dim=1))
    assert GTG(utility, M, generator=Generator()).values.tolist() == [0.0] * M
    assert asked == [2]
    # In an additive game the means never move. Sweeps of 4 orders: 32 is the first beyond 30.
    utility, asked = counted(additive_game([0.4, 0.3, 0.2, 0.1]))
    GTG(utility, 4, truncation=0.0, generator=Generator().manual_seed(0))
    assert asked == [2] + 8 * [4 * 5]
    # Sweeps of 5: 30 is not beyond 30, 35 is.
    utility, asked = counted(additive_game([0.4, 0.3, 0.2, 0.1, 0.1]))
    GTG(utility, 5, truncation=0.0, generator=Generator().manual_seed(0))
    assert asked == [2] + 7 * [5 * 6]


def test_how_far_the_means_of_gtg_still_move_by_hand() -> None:
    """Running means (4, 0.04), (2, 0.03), (2, 0.02); from the last by (1, 1), (0, 1/2), (0, 0).

    Each client's change is taken in its own value: means over the two are 1, 1/4 and 0.
    """
    marginals = torch.tensor([[4.0, 0.04], [0.0, 0.02], [2.0, 0.0]], dtype=torch.float64)
    assert _relative_change(marginals, 3) == pytest.approx(1.0)
    assert _relative_change(marginals, 2) == pytest.approx(0.25)
    assert _relative_change(marginals, 1) == 0.0


def test_leave_one_out_by_hand() -> None:
    # u = product of the sizes of two teams {0, 1} and {2, 3, 4}: 6; without 0: 3; without 2: 4.
    def teams(masks: Tensor) -> Tensor:
        return masks[:, :2].sum(dim=1) * masks[:, 2:].sum(dim=1)

    found = ESTIMATORS["leave-one-out"](teams, 5)
    assert found.values.tolist() == [3.0, 3.0, 2.0, 2.0, 2.0]
    assert found.resolution == 0.0


# -- the game of a round


K, N = 4, 90


def built(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    convolution = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2))
    model = convolution.extend([nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3)])
    with torch.no_grad():
        model[1].running_mean.uniform_(-0.5, 0.5)
        model[1].running_var.uniform_(0.5, 2.0)
        model[1].num_batches_tracked.fill_(seed)
    return model


GLOBAL, *CLIENTS = map(built, range(K + 1))
INPUTS = torch.randn(N, 2, 4, 4, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (N,), generator=torch.Generator().manual_seed(2))
LAYOUT = ParameterLayout.from_arrays(model_arrays(GLOBAL), trainable_names(GLOBAL))


def played() -> RoundUpdates:
    sent, *received = (LAYOUT.to_vectors(model_arrays(model)) for model in (GLOBAL, *CLIENTS))
    return a_round(
        torch.stack([vectors.params for vectors in received]) - sent.params,
        model=sent,
        buffer_updates=torch.stack([vectors.buffers for vectors in received]) - sent.buffers,
        names=LAYOUT,
    )


def plain_loop(masks: Tensor) -> Tensor:
    """One ``load_state_dict`` and one pass per coalition: accuracies and losses ``[2, c]``."""
    model, columns = copy.deepcopy(GLOBAL).eval(), []
    for mask in masks.tolist():
        members = [c.state_dict() for c, chosen in zip(CLIENTS, mask, strict=True) if chosen]
        mean = {
            name: torch.stack([member[name] for member in members]).mean(dim=0)
            if members and value.is_floating_point()
            else value
            for name, value in GLOBAL.state_dict().items()
        }
        model.load_state_dict(mean)
        with torch.no_grad():
            logits = model(INPUTS)
        accuracy = (logits.argmax(dim=1) == TARGETS).double().mean()
        columns.append(torch.stack([accuracy, functional.cross_entropy(logits, TARGETS).double()]))
    return torch.stack(columns, dim=1)


def judged(batch_size: int = N) -> Validation:
    return Validation(GLOBAL, INPUTS, TARGETS, device="cpu", batch_size=batch_size)


MASKS = all_coalitions(K)[torch.randperm(2**K, generator=torch.Generator().manual_seed(3))]
ACCURACIES, LOSSES = plain_loop(MASKS)
ROW = LAYOUT.num_params * 4


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("budget", "batch_size"), [(1, N), (ROW, 7), (7 * ROW, N), (2**28, 7)])
def test_worths_agree_with_a_plain_loop(threads, budget, batch_size, monkeypatch):
    # As if the work were worth sharing.
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    judge = judged(batch_size)
    with torch_threads(threads):
        worths = RoundGame(judge, played(), "loss", budget)(MASKS)
        torch.testing.assert_close(-worths, LOSSES, rtol=1e-5, atol=1e-6)
        game = RoundGame(judge, played(), "accuracy", budget)
        # No image here lies so near a border between classes that rounding decides.
        torch.testing.assert_close(game(MASKS), ACCURACIES, rtol=0, atol=1e-12)
        assert game.largest == pytest.approx(float(ACCURACIES.max()))


def test_a_thread_that_cannot_begin_leaves_no_other_waiting(monkeypatch):
    class OneThread(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **named: Any) -> Any:
            if self._threads:
                raise RuntimeError("can't start new thread")
            return super().submit(*arguments, **named)

    monkeypatch.setattr("fedif_flower.valuation.parallel.ThreadPoolExecutor", OneThread)
    before = set(threading.enumerate())
    judge = judged().judge
    with pytest.raises(RuntimeError, match="can't start new thread"):
        JudgePool([judge, judge])
    begun = set(threading.enumerate()) - before
    for thread in begun:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in begun)


def test_what_is_the_user_s_own_is_called_by_one_thread_at_a_time(monkeypatch):
    """A score that puts aside what it is given, and reads it again, as torchmetrics does."""
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    kept: dict[str, Tensor] = {}
    threads: set[int] = set()

    def score(outputs: Tensor, targets: Tensor) -> float:
        threads.add(threading.get_ident())
        kept["right"] = outputs.argmax(dim=1) == targets
        sleep(0.0005)  # Let others have their turn.
        return float(kept["right"].double().mean())

    judge = Validation(GLOBAL, INPUTS, TARGETS, score=score, device="cpu")
    with torch_threads(3):
        RoundGame(judge, played(), "accuracy")(MASKS)  # Its threads are still there.
        threads.clear()
        worths = RoundGame(judge, played(), "score")(MASKS)
    torch.testing.assert_close(worths, ACCURACIES, rtol=0, atol=1e-12)
    assert len(threads) == 1


def test_coalitions_have_the_run_s_own_sign():
    """The model that the held-out set was given has another one, by which all is reversed."""

    class Signed(nn.Linear):
        def __init__(self, sign: int) -> None:
            super().__init__(1, 1, bias=False)
            nn.init.zeros_(self.weight)
            self.register_buffer("sign", torch.tensor(sign))

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * self.sign

    ones = torch.ones(2, 1)
    judge = Validation(Signed(-1), ones, 3 * ones, loss_fn=nn.MSELoss(), device="cpu")
    arrays = model_arrays(Signed(1))
    layout = ParameterLayout.from_arrays(arrays, ["weight"])
    sent = layout.to_vectors(arrays)
    updates = a_round(torch.tensor([[1.0], [2.0]]), model=sent, names=layout)
    worths = RoundGame(judge, updates, "loss")(all_coalitions(2))
    assert worths.tolist() == [-9.0, -4.0, -1.0, -2.25]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_client_whose_model_has_no_loss_is_worth_least_and_stops_no_round(estimator):
    updates = played().client_updates.clone()
    updates[2] = 1e30
    hostile = replace(played(), client_updates=updates)
    valuation = ShapleyValuation(judged(), estimator=estimator, num_samples=9, utility="loss")
    values = valuation.score(hostile).values
    assert values.isfinite().all()
    assert values.argmin() == 2


def test_two_clients_who_spoil_every_large_coalition_stop_no_round():
    """Leave-one-out asks for no coalition without one of them; the model that was sent is sound."""
    updates = played().client_updates.clone()
    updates[:2] = 1e30
    hostile = replace(played(), client_updates=updates)
    valuation = ShapleyValuation(judged(), estimator="leave-one-out", utility="loss")
    assert valuation.score(hostile).values.tolist() == [0.0] * len(updates)
    diverged = replace(hostile.model, params=torch.full_like(hostile.global_params, 1e30))
    with pytest.raises(ValuationError, match="allowed: finite numbers"):
        valuation.score(replace(hostile, model=diverged))


def test_who_makes_outputs_infinite_is_right_about_nothing():
    """Seven of ten are of class 0, which a model of zeros names: u(empty) = u(honest) = .7.

    With the other's parameters all outputs are infinite, alone and in the mean: u = 0. The honest
    one changes nothing, so that its value is 0 and the other's -.7.
    """
    model = nn.Linear(2, 2, bias=False)
    targets = torch.tensor([0] * 7 + [1] * 3)
    held_out = Validation(model, torch.full((10, 2), 4.0), targets, device="cpu")
    updates = a_round(torch.stack([torch.zeros(4), torch.full((4,), 3e38)]))
    worths = RoundGame(held_out, updates, "accuracy")
    in_order = torch.tensor([[False, False], [True, False], [False, True], [True, True]])
    assert worths(in_order).tolist() == pytest.approx([0.7, 0.7, 0.0, 0.0], rel=1e-6)
    # Rounding is reckoned by the largest worth, whichever coalitions were asked for last.
    assert worths(in_order[2:]).tolist() == [0.0, 0.0]
    assert worths.largest == pytest.approx(0.7, rel=1e-6)
    assert exact_shapley(worths, 2).tolist() == pytest.approx([0.0, -0.7], rel=1e-6)


@pytest.mark.parametrize("estimator", ["complementary", "permutation", "owen"])
def test_draws_depend_on_seed_and_round_alone(estimator):
    def drawn(server_round: int, seed: int) -> tuple[float, ...]:
        valuation = ShapleyValuation(judged(), estimator=estimator, num_samples=2, seed=seed)
        return tuple(valuation.score(replace(played(), server_round=server_round)).values.tolist())

    assert drawn(3, 7) == drawn(3, 7)
    assert len({drawn(server_round, 7) for server_round in range(5)}) > 1
    assert len({drawn(3, seed) for seed in range(5)}) > 1
