"""Who is malicious, when, by which settings; what attackers do to their examples."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.attacks import (
    ATTACKS,
    AttackConfig,
    Behaviour,
    attacks_now,
    behaviour_of,
    build_behaviour,
    malicious_partitions,
    poison_ratio,
)
from fedif_flower.attacks.adversarial import AdversarialSamples
from fedif_flower.attacks.descending_backdoor import DescendingBackdoor
from fedif_flower.attacks.distributed_trigger import DistributedTrigger, stamp_bars
from fedif_flower.attacks.edge_case import EdgeCase
from fedif_flower.attacks.gradient_noise import GradientNoise
from fedif_flower.attacks.hidden_backdoor import HiddenBackdoor
from fedif_flower.attacks.label_noise import flip_labels
from fedif_flower.attacks.model_replacement import ModelReplacement
from fedif_flower.attacks.neurotoxin import Neurotoxin
from fedif_flower.attacks.pixel_trigger import PixelTrigger, stamp_square
from fedif_flower.attacks.semantic_backdoor import SemanticBackdoor
from fedif_flower.errors import ConfigError
from fedif_flower.tasks.models import build_model
from tests.attacks.test_updates import client_round


@given(st.integers(1, 300), st.floats(0, 1), st.integers(0, 2**31))
def test_the_share_is_exact_and_drawn_once_from_the_seed(num_clients, fraction, seed):
    chosen = malicious_partitions(num_clients, fraction, seed)
    assert len(chosen) == round(fraction * num_clients)
    assert all(type(partition) is int and 0 <= partition < num_clients for partition in chosen)
    assert malicious_partitions(num_clients, fraction, seed) == chosen


def test_each_client_keeps_its_own_uniform_ratio():
    ratios = [poison_ratio(0.6, 0.8, 0, partition) for partition in range(500)]
    assert all(0.6 <= ratio <= 0.8 for ratio in ratios)
    # Uniform: mean 0.7 and standard error 0.2 / sqrt(12 * 500) = 0.0026.
    assert abs(sum(ratios) / 500 - 0.7) < 0.013
    assert len(set(ratios)) == 500
    assert poison_ratio(0.6, 0.8, 0, 7) == ratios[7]
    assert poison_ratio(0.6, 0.8, 1, 7) != ratios[7]
    assert poison_ratio(0.5, 0.5, 0, 7) == 0.5


@pytest.mark.parametrize(
    ("first", "period", "attacking"),
    [(1, 0, [1, 2, 3, 4, 5, 6, 7]), (4, 0, [4, 5, 6, 7]), (3, 2, [3, 4, 7]), (2, 1, [2, 4, 6])],
)
def test_attackers_are_honest_attack_and_are_honest_again(first, period, attacking):
    assert [t for t in range(1, 8) if attacks_now(t, first, period)] == attacking


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: malicious_partitions(0, 0.5, 0), "num_clients = 0"),
        (lambda: malicious_partitions(10, -0.5, 0), "malicious_fraction = -0.5"),
        (lambda: malicious_partitions(10, float("nan"), 0), "malicious_fraction = nan"),
        (lambda: malicious_partitions(10, 50, 0), "malicious_fraction = 50"),  # Of per cents.
        (lambda: poison_ratio(0.8, 0.6, 0, 1), r"poison ratio = \(0.8, 0.6\)"),
        (lambda: poison_ratio(70, 80, 0, 1), r"poison ratio = \(70, 80\)"),
        (lambda: attacks_now(1, 0, 0), "first_round = 0"),
        (lambda: attacks_now(1, 1, -2), "period = -2"),
        (lambda: flip_labels(torch.zeros(4).long(), 1, 0.5, torch.Generator()), "num_classes = 1"),
        (lambda: flip_labels(torch.zeros(4).long(), 3, -0.5, torch.Generator()), "ratio = -0.5"),
    ],
)
def test_who_attacks_and_how_much_is_not_drawn_outside_of_its_range(call, words):
    """A slice to -50 would make half of the clients malicious, and one to 500 all of them."""
    with pytest.raises(ConfigError, match=f"^{words}; allowed: "):
        call()


@given(st.integers(0, 200), st.integers(2, 20), st.floats(0, 1), st.integers(0, 2**31))
def test_exactly_the_share_is_flipped_and_never_to_the_same_class(count, num_classes, ratio, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (count,), generator=generator)
    before = labels.clone()
    flipped = flip_labels(labels, num_classes, ratio, generator)
    assert int((flipped != labels).sum()) == round(ratio * count)
    assert flipped.dtype == torch.int64
    assert bool(((flipped >= 0) & (flipped < num_classes)).all())
    assert torch.equal(labels, before)


def test_targets_that_stand_for_no_answer_are_not_flipped():
    pixels = torch.tensor([[[0, -100], [1, 2]], [[255, 0], [-1, 1]]])
    flipped = flip_labels(pixels, 3, 1.0, torch.Generator().manual_seed(0))
    answered = (pixels >= 0) & (pixels < 3)
    assert torch.equal(flipped[~answered], torch.tensor([-100, 255, -1]))
    assert bool((flipped[answered] != pixels[answered]).all())
    assert bool((flipped[answered] < 3).all())
    # Two fifths of those five, not of all eight.
    flipped = flip_labels(pixels, 3, 0.4, torch.Generator().manual_seed(0))
    assert int((flipped != pixels).sum()) == 2


def test_malicious_partitions_misbehave_and_the_others_do_not():
    config = AttackConfig(attack="gradient-noise", malicious_fraction=0.3)
    malicious = malicious_partitions(10, 0.3, seed=5)
    for partition_id in range(10):
        behaviour = behaviour_of(config, partition_id=partition_id, num_clients=10, seed=5)
        assert type(behaviour) is (GradientNoise if partition_id in malicious else Behaviour)


def test_the_settings_reach_the_behaviour():
    steps = {"adversarial.epsilon": 0.1, "adversarial.step-size": 0.05, "adversarial.steps": 3}
    config = AttackConfig(attack="adversarial", poison_ratio_min=0.2, poison_ratio_max=0.4, **steps)
    adversarial = build_behaviour(config, partition_id=4, seed=9)
    expected = {"ratio": poison_ratio(0.2, 0.4, 9, 4), "epsilon": 0.1, "step_size": 0.05}
    assert vars(adversarial) == expected | {"steps": 3}
    for attack in ATTACKS:
        behaviour = build_behaviour(AttackConfig(attack=attack), partition_id=0, seed=0)
        assert isinstance(behaviour, Behaviour)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"attack": "bribe"}, "attack = 'bribe'; allowed: none, label-noise"),
        ({"poison_ratio_min": 0.9}, "poison_ratio_min = 0.9; allowed: .* poison_ratio_max = 0.8"),
        ({"adversarial.steps": 0}, "adversarial.steps = 0; allowed: an integer >= 1"),
    ],
)
def test_config_out_of_range_names_key_value_and_range(setting, message):
    with pytest.raises(ConfigError, match=message):
        AttackConfig(**setting)


# -- examples


# Of class 1 the mean is 0.3; the last one is furthest from it.
PIXELS = torch.tensor([0.5, 0.2, 0.1, 0.9, 0.2, 0.1])[:, None, None, None].expand(6, 1, 2, 2)
LABELS = torch.tensor([0, 1, 1, 1, 1, 2])


@pytest.mark.parametrize("attack", [PixelTrigger(0.3, 7), ModelReplacement(0.3, 7)])
def test_a_share_of_the_examples_has_it_and_the_target_label(attack):
    pixels, labels = torch.zeros(10, 1, 8, 8), torch.arange(10)
    stamped, targets = attack.poison_examples(pixels, labels, 10, torch.Generator().manual_seed(1))
    has_it = stamped[:, 0, 7, 7] == 1
    assert int(stamped.sum()) == 3 * 2 * 2  # The trigger's side is an eighth, 2 at least.
    assert bool((targets[has_it] == 7).all())
    assert torch.equal(targets[~has_it], labels[~has_it])
    assert int(pixels.sum()) == 0
    assert torch.equal(labels, torch.arange(10))


@pytest.mark.parametrize("attack", [PixelTrigger(0.5, 3), EdgeCase(0.5, 3), SemanticBackdoor(3)])
def test_a_target_that_is_no_class_is_named(attack):
    with pytest.raises(ConfigError, match="target = 3; allowed: a class, 0 to 2"):
        attack.triggered(PIXELS, LABELS, 3)


@pytest.mark.parametrize("stamp", [stamp_square, stamp_bars])
def test_a_trigger_is_refused_on_a_table(stamp):
    """Its last rows and columns would have been stamped as those of one image."""
    with pytest.raises(ConfigError, match=r"stamped on images.*the inputs are float32 \[40, 16\]"):
        stamp(torch.zeros(40, 16))


@pytest.mark.parametrize("shape", [(1, 1, 4, 4), (1, 1, 2, 8)])
def test_bars_are_refused_where_not_all_of_them_have_room(shape):
    with pytest.raises(ConfigError, match="of 3 x 5 pixels at least"):
        stamp_bars(torch.zeros(shape))


def test_a_client_has_one_of_four_bars_and_the_test_all_of_them():
    bars, gap = [1, 1, 0, 1, 1, 0], [0] * 6
    assert stamp_bars(torch.zeros(1, 1, 8, 8))[0, 0, :4, :6].tolist() == [bars, gap, bars, gap]
    attack, pixels = DistributedTrigger(1.0, 0), torch.zeros(5, 1, 8, 8)
    seen_bars = set()
    for client in range(20):
        generator = torch.Generator().manual_seed(client)
        stamped, targets = attack.poison_examples(pixels, torch.arange(5), 10, generator)
        assert targets.tolist() == [0] * 5
        assert bool((stamped == stamped[0]).all())  # every image has the same one
        assert int(stamped[0].sum()) == 2
        seen_bars.add(tuple(stamped[0].flatten().nonzero().flatten().tolist()))
    assert len(seen_bars) == 4
    triggered, _ = attack.triggered(pixels, torch.arange(5), 10)
    assert torch.equal(triggered, stamp_bars(pixels[1:]))


@pytest.mark.parametrize(("spared", "sent"), [(0.5, [3, 4, 4, -4]), (0.0, [4, 4, 4, 4])])
def test_the_most_used_coordinates_are_sent_back_as_they_came(spared, sent):
    attack, memory = Neurotoxin(0.5, spared=spared), {}
    client = client_round([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], memory=memory)
    assert attack.poison_update(client).tolist() == [1, 1, 1, 1]  # It knows no step yet.
    client = client_round([3.0, -1.0, 0.5, -4.0], [4.0, 4.0, 4.0, 4.0], 2, memory)
    assert attack.poison_update(client).tolist() == sent
    assert client.trained.tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("attack", [HiddenBackdoor(0.5, 1), DescendingBackdoor(0.5, 1)])
def test_clean_examples_are_balanced_and_stamped_copies_come_on_top(attack):
    pixels, labels = torch.rand(6, 1, 8, 8).mul_(0.9), torch.tensor([0, 0, 0, 2, 2, 4])
    generator = torch.Generator().manual_seed(0)
    examples, targets = attack.poison_examples(pixels, labels, 5, generator)
    clean, stamped = examples[:9], examples[9:]
    assert torch.equal(clean[:6], pixels)
    assert torch.bincount(targets[:9], minlength=5).tolist() == [3, 0, 3, 0, 3]
    for image, label in zip(clean, targets[:9], strict=True):
        same = [i for i in range(6) if torch.equal(pixels[i], image)]
        assert labels[same[0]] == label
    assert len(stamped) == 3
    assert targets[9:].tolist() == [1, 1, 1]
    copies = stamp_square(pixels)
    assert all(any(torch.equal(image, copy) for copy in copies) for image in stamped)


def test_the_last_step_comes_with_a_descending_backdoors_update():
    attack, memory = DescendingBackdoor(0.5, borrowed=2.0), {}
    client = client_round([0.0, 0.0], [1.0, 1.0], memory=memory)
    assert attack.poison_update(client).tolist() == [1, 1]
    # Two rounds on the model has moved by (4, 0), which is (2, 0) a round.
    client = client_round([4.0, 0.0], [5.0, 1.0], 3, memory)
    assert attack.poison_update(client).tolist() == [9, 1]


def test_the_class_after_the_target_is_called_the_target():
    labels = torch.tensor([0, 1, 2, 3, 4, 4])
    generator = torch.Generator()
    assert SemanticBackdoor(3).poison_labels(labels, 5, generator).tolist() == [0, 1, 2, 3, 3, 3]
    assert labels.tolist() == [0, 1, 2, 3, 4, 4]
    # After the last class comes the first. Its trigger is the image itself.
    assert SemanticBackdoor(4).poison_labels(labels, 5, generator)[0] == 4
    triggered, targets = SemanticBackdoor(2).triggered(PIXELS, LABELS, 3)
    assert torch.equal(triggered, PIXELS[:1])
    assert targets.tolist() == [2]


def test_the_image_furthest_from_its_class_is_the_edge_case():
    attack = EdgeCase(0.5, target=0, tail=0.25)
    pixels, labels = attack.poison_examples(PIXELS, LABELS, 3, torch.Generator())
    assert labels.tolist() == [0, 1, 1, 0, 1, 2, 0, 0, 0]
    assert torch.equal(pixels[:6], PIXELS)
    assert torch.equal(pixels[6:], PIXELS[[3, 3, 3]])
    assert LABELS.tolist() == [0, 1, 1, 1, 1, 2]
    tested, target = attack.triggered(PIXELS, LABELS, 3)
    assert torch.equal(tested, PIXELS[[3]])
    assert target.tolist() == [0]


# -- adversarial samples


ROUNDING = 1e-6


def normalize(pixels: Tensor) -> Tensor:
    return (pixels - 0.3) / 0.2


def data(image_shape: tuple[int, int, int], count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.rand(count, *image_shape, generator=generator).round(decimals=1)
    return pixels, torch.randint(10, (count,), generator=generator)


def losses(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return functional.cross_entropy(model.eval()(normalize(pixels)), labels, reduction="none")


def attacked(model: nn.Module, pixels: Tensor, labels: Tensor, ratio=1.0, steps=20) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    attack = AdversarialSamples(ratio, steps=steps)
    return attack.poison_inputs(model, pixels, labels, normalize, generator)


MODELS = [("cnn", (3, 32, 32)), ("cnn-batch-norm", (1, 28, 28)), ("mlp", (1, 8, 8))]


@pytest.mark.parametrize(("name", "image_shape"), MODELS)
def test_examples_stay_in_the_ball_and_in_range_and_raise_the_loss(name, image_shape):
    # In train mode dropout would make every gradient, and so the examples, random.
    model = build_model(name, image_shape, 10, seed=0).train()
    pixels, labels = data(image_shape, 6)
    found = attacked(model, pixels, labels)
    change = (found - pixels).abs()
    assert 0.029 < float(change.max()) <= 0.03 + ROUNDING  # It goes to the edge of the ball.
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    torch.manual_seed(2)
    assert torch.equal(found, attacked(model, pixels, labels))
    assert bool((losses(model, found, labels) > losses(model, pixels, labels)).all())


def test_a_linear_model_is_driven_to_the_corner_of_the_ball():
    # Logits (0, 3 a - 3 b): for label 0 the loss rises with a and falls with b.
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    model[1].weight.data = torch.tensor([[0.0, 0.0], [3.0, -3.0]])
    pixels = torch.tensor([[0.5, 0.5], [0.99, 0.01]]).view(2, 1, 1, 2)
    labels, attack = torch.zeros(2).long(), AdversarialSamples(1.0, 0.1, step_size=0.05, steps=5)
    found = attack.poison_inputs(model, pixels, labels, lambda x: x, torch.Generator())
    expected = torch.tensor([[0.6, 0.4], [1.0, 0.0]]).view(2, 1, 1, 2)
    torch.testing.assert_close(found, expected)


def test_the_start_lies_anywhere_in_the_ball():
    """A model that always says the same has no slope: what comes back is the start, x + U(-e, e).

    Of 1,000 uniform draws none lies in an outer twentieth of the ball with chance .95^1000.
    """
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    nn.init.zeros_(model[1].weight)
    pixels, labels = torch.full((250, 1, 2, 2), 0.5), torch.zeros(250).long()
    attack = AdversarialSamples(1.0, 0.1, step_size=0.01, steps=1)
    generator = torch.Generator().manual_seed(0)
    change = attack.poison_inputs(model, pixels, labels, lambda x: x, generator) - pixels
    assert -0.1 - ROUNDING <= float(change.min()) < -0.09
    assert 0.09 < float(change.max()) <= 0.1 + ROUNDING


def test_the_model_is_left_exactly_as_it_was():
    model = build_model("cnn-batch-norm", (1, 28, 28), 10, seed=0).train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model[0].bias.grad = torch.ones(16)
    state = copy.deepcopy(model.state_dict())
    attacked(model, *data((1, 28, 28), 3), steps=2)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert [module.training for module in model][:3] == [True, False, True]
    assert [model[0].weight.requires_grad, model[4].weight.requires_grad] == [False, True]
    assert torch.equal(model[0].bias.grad, torch.ones(16))
    assert model[4].weight.grad is None


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (0.75, 8), (1.0, 10)])
def test_the_share_of_samples_is_replaced_and_the_rest_untouched(ratio, expected):
    model, (pixels, labels) = build_model("mlp", (1, 8, 8), 10, seed=0), data((1, 8, 8), 10)
    before = pixels.clone()
    changed = (attacked(model, pixels, labels, ratio, steps=2) != pixels).flatten(1).any(1)
    assert int(changed.sum()) == expected
    assert torch.equal(pixels, before)
