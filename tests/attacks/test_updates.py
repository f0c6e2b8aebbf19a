"""What is sent in place of an update: by one alone, and by several that agree."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.attacks import ClientRound, build_behaviour
from fedif_flower.attacks.alie import Alie, largest_shift
from fedif_flower.attacks.fang import Fang
from fedif_flower.attacks.free_riders import RepeatStep, ReturnModel, ReturnWithNoise
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.ipm import InnerProductManipulation
from fedif_flower.attacks.mimic import Mimic
from fedif_flower.attacks.min_max import MinMax
from fedif_flower.attacks.min_sum import MinSum
from fedif_flower.attacks.model_replacement import ModelReplacement
from fedif_flower.attacks.poisoned_fl import PoisonedFL
from fedif_flower.attacks.random_update import RandomUpdate
from fedif_flower.attacks.scaling import HonestScaling, Scaling
from fedif_flower.attacks.sign_flip import SignFlip
from fedif_flower.attacks.sybils import Sybils
from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig


def client_round(received, trained, server_round=1, memory=None) -> ClientRound:
    """A client's round on small vectors."""
    return ClientRound(
        torch.as_tensor(received),
        torch.tensor(trained),
        server_round,
        torch.Generator().manual_seed(server_round),
        {} if memory is None else memory,
    )


@pytest.mark.parametrize(
    ("attack", "sent"),
    [
        (SignFlip(), [0.5, 4]),
        (SignFlip(4), [-1, 10]),
        (HonestScaling(10), [6, -18]),
        (Scaling(0.5, 100), [51, -198]),
        (ModelReplacement(0.5, 0, factor=4), [3, -6]),
        (ReturnModel(), [1, 2]),
    ],
)
def test_the_update_is_turned_lengthened_or_left_out(attack, sent):
    client = client_round([1.0, 2.0], [1.5, 0.0])  # u = [0.5, -2]
    assert attack.poison_update(client).tolist() == sent
    assert client.trained.tolist() == [1.5, 0]


def test_noise_has_the_given_standard_deviation_and_no_mean():
    client = client_round([0.0] * 100_000, [3.0] * 100_000)
    noise = GradientNoise(0.1).poison_update(client) - client.trained
    # Standard errors at n = 100,000: mean 0.1 / 316 = 0.00032, std 0.1 / 447 = 0.00022.
    assert abs(float(noise.mean())) < 0.002
    assert float(noise.std()) == pytest.approx(0.1, abs=0.0015)
    assert float((noise.abs() < 0.1).float().mean()) == pytest.approx(0.6827, abs=0.01)
    assert torch.equal(GradientNoise(0.0).poison_update(client), torch.full((100_000,), 3.0))


def test_noise_is_as_long_as_the_honest_update_or_the_last_global_step():
    def noise(server_round: int) -> torch.Tensor:
        client = client_round([1.0, 1.0, 1.0], [1.0, 4.0, 5.0], server_round)  # length 5
        return RandomUpdate(2).poison_update(client) - client.received

    assert float(noise(1).norm()) == pytest.approx(10)
    assert torch.equal(noise(1), noise(1))
    assert not torch.equal(noise(1), noise(2))
    memory = {}
    first = ReturnWithNoise().poison_update(client_round([1.0, 1.0], [9.0, 9.0], 1, memory))
    assert first.tolist() == [1, 1]
    client = client_round([7.0, 9.0], [9.0, 9.0], 3, memory)  # [6, 8] in two rounds: 5 a round
    sent = ReturnWithNoise(2).poison_update(client)
    assert float((sent - client.received).norm()) == pytest.approx(10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_global_step_is_sent_again(dtype):
    memory = {}

    def sent(factor, received, server_round):  # Beyond 256, bfloat16 has even numbers alone.
        client = client_round(torch.tensor(received, dtype=dtype), [9.0, 9.0], server_round, memory)
        return RepeatStep(factor).poison_update(client).tolist()

    assert sent(2, [1.0, 2.0], 259) == [1, 2]  # it knows no step yet
    # Two rounds later the model is [+3, -1] further: [1.5, -0.5] a round.
    assert sent(2, [4.0, 1.0], 261) == [4 + 3, 1 - 1]
    assert sent(1, [5.0, 1.0], 262) == [6, 1]
    # A round that is run again has made no step since.
    assert sent(1, [5.0, 1.0], 262) == [5, 1]


THREE = [[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]  # mean [2, 2], std [sqrt(8/3), sqrt(2)]


def sent_by(attack, updates) -> torch.Tensor:
    updates = torch.as_tensor(updates)
    generator = torch.Generator().manual_seed(0)
    return attack.collude(torch.zeros(updates.shape[1]), updates, generator)


@pytest.mark.parametrize(
    ("attack", "updates", "expected"),
    [
        (Alie(0.4, z=2.0), THREE, [2 - 2 * (8 / 3) ** 0.5, 2 - 2 * 2**0.5]),
        (InnerProductManipulation(0.5), [[1.0, -2.0], [3.0, 0.0]], [-1, 0.5]),
        # The spread is along the first axis; the mean is [2, 0].
        (Mimic(), [[0.0, 1.0], [0.5, -1.0], [1.5, 0.0], [6.0, 0.0]], [6, 0]),
        (Sybils(), THREE, THREE[0]),
        # Mean 1, std 1, at distance 2. Min-Max: |1 - g - 2| <= 2, so g = 1: it sends 0, as far as
        # 2. Min-Sum: g^2 + g^2 + 2 <= 4, so g = 1.
        (MinMax(), [[0.0], [2.0]], [0]),
        (MinSum(), [[0.0], [2.0]], [0]),
        # 0, 0, 3: mean 1, std sqrt(2). Min-Max: 1 - g sqrt(2) - 3 >= -3, so g sqrt(2) = 1.
        # Min-Sum: 3 * 2 g^2 + 6 <= 18, so g sqrt(2) = 2.
        (MinMax(), [[0.0], [0.0], [3.0]], [0]),
        (MinSum(), [[0.0], [0.0], [3.0]], [-1]),
    ],
)
def test_all_send_what_is_worked_out_by_hand(attack, updates, expected):
    for sent in sent_by(attack, updates).tolist():
        assert sent == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("attack", [Alie(0.4), Mimic(), MinMax(), MinSum()])
def test_where_there_is_no_spread_they_are_honest(attack):
    for updates in ([[1.0, 2.0]], [[1.0, 2.0]] * 3):
        assert sent_by(attack, updates).tolist() == updates


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_mimic_copies_who_is_furthest_out_on_either_side(place, sign):
    """Of 0, 0, 0 and 6, the mean is 1.5; which way the main direction points is nobody's choice."""
    updates = 0.1 * torch.eye(4, 2)
    updates[place] = torch.tensor([sign * 6.0, 0.0])
    assert sent_by(Mimic(), updates).tolist() == [updates[place].tolist()] * 4


def test_the_shift_leaves_a_majority_further_out():
    # The paper's example: 24 of 50 need s = 26 - 24 = 2 of 26 honest ones; Phi(z) = 24 / 26.
    assert largest_shift(50, 24) == pytest.approx(1.4260769, abs=1e-6)
    # 10 of 50: s = 16, (40 - 16) / 40 = 0.6.
    assert largest_shift(50, 10) == pytest.approx(0.2533471, abs=1e-6)
    assert largest_shift(10, 2) == 0  # half of the honest ones are asked for
    assert largest_shift(4, 3) == 0  # a majority already, and one honest client
    assert largest_shift(10, 1) == 0  # 5 of 9 are asked for: more than half lie further out

    # Without a given shift it follows from the share: Phi(z) = 0.5 / (1 - share). Mean 1, std 1.
    assert float(sent_by(Alie(0.4), [[0.0], [2.0]])[0]) == pytest.approx(1 - 0.96742, abs=1e-3)


def test_no_shift_follows_where_all_are_malicious():
    named = {"attack": "alie", "malicious-fraction": 1.0}
    words = "malicious-fraction = 1.0; allowed: < 1 with alie.z = 'auto'"
    with pytest.raises(ConfigError, match=words):
        build_behaviour(RunConfig.from_run_config(named), partition_id=0, seed=0)
    given_z = RunConfig.from_run_config({**named, "alie.z": 2.0})
    attack = build_behaviour(given_z, partition_id=0, seed=0)
    assert float(sent_by(attack, [[0.0], [2.0]])[0]) == -1  # Mean 1, std 1.


@given(k=st.integers(2, 6), d=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_a_step_further_would_break_the_bound(k, d, seed):
    updates = torch.randn(k, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mean, std = updates.mean(dim=0), updates.std(dim=0, correction=0)
    distances = torch.cdist(updates, updates)
    for attack, measure in ((MinMax(), torch.max), (MinSum(), lambda far: far.square().sum())):
        bound = max(float(measure(far)) for far in distances)
        sent = sent_by(attack, updates)[0]
        gamma = float((mean - sent).norm() / std.norm())
        assert torch.allclose(mean - gamma * std, sent)
        assert float(measure((updates - sent).norm(dim=1))) == pytest.approx(bound, rel=1e-9)
        assert float(measure((updates - (mean - 1.01 * gamma * std)).norm(dim=1))) > bound


def test_draws_are_as_far_out_as_they_are_to_be_and_differ():
    sent = sent_by(Fang(), [[1.0, -4.0], [3.0, -2.0]])  # mean [2, -3], std [1, 1]
    assert bool(((sent[:, 0] >= -2) & (sent[:, 0] <= -1)).all())
    assert bool(((sent[:, 1] >= 0) & (sent[:, 1] <= 1)).all())
    assert not torch.equal(sent[0], sent[1])
    noise = sent_by(Sybils(0.1), [[3.0, 4.0], [9.0, 9.0], [7.0, 7.0]]) - torch.tensor([3.0, 4.0])
    assert noise.norm(dim=1).tolist() == pytest.approx([0.5] * 3, rel=1e-5)
    assert not torch.equal(noise[0], noise[1])


def test_rounds_of_poisoned_fl_by_hand():
    attack, honest = PoisonedFL(factor=2.0), torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def collude(received: list[float]) -> torch.Tensor:
        return attack.collude(torch.tensor(received), honest, torch.Generator())

    assert torch.equal(collude([0.0, 0.0]), honest)
    # The first step is (3, 4): they sent nothing for it, so the magnitudes are (0.6, 0.8).
    first = collude([3.0, 4.0])
    assert torch.equal(first[0], first[1])
    assert first[0].abs().tolist() == pytest.approx([6, 8])
    # The next one is (0, 5), and their unit vector (0.6, 0.8) times the signs.
    second = collude([3.0, 9.0])[0]
    assert torch.equal(second.sign(), first[0].sign())
    left = [abs(0 - 5 * 0.6 * first[0, 0].sign()), abs(5 - 5 * 0.8 * first[0, 1].sign())]
    length = math.hypot(*left)
    assert second.abs().tolist() == pytest.approx([2 * 5 * float(x) / length for x in left])
    # A model that stands still is sent back.
    assert collude([3.0, 9.0]).tolist() == [[0, 0]] * 2


# Of 10,000 coordinates 5,116 along the signs would be significant.
@pytest.mark.parametrize(
    ("along", "factor", "expected"),
    [(5_120, 8.0, 8.0), (5_100, 8.0, 5.6), (0, 0.6, 0.5), (0, 0.3, 0.3)],
)
def test_the_factor_shrinks_to_its_end_where_the_model_does_not_follow(along, factor, expected):
    attack, honest = PoisonedFL(factor, patience=2), torch.ones(1, 10_000)
    attack.collude(torch.zeros(10_000), honest, torch.Generator())
    signs = attack.collude(torch.ones(10_000), honest, torch.Generator())[0].sign()
    signs[along:] *= -1
    attack.collude(signs, honest, torch.Generator())
    assert attack.factor == pytest.approx(expected)


def test_poisoned_fl_judges_what_has_moved_since_it_judged_last():
    """First by 3 along the signs, then 1 back: further along than at the start, and yet against."""
    attack, honest = PoisonedFL(8.0, patience=2), torch.ones(1, 100)
    attack.collude(torch.zeros(100), honest, torch.Generator())
    signs = attack.collude(torch.ones(100), honest, torch.Generator())[0].sign()
    for received, factor in ((3.0, 8.0), (2.5, 8.0), (2.0, 5.6)):
        attack.collude(received * signs, honest, torch.Generator())
        assert attack.factor == pytest.approx(factor)
