"""Chances by which labels of one class become others."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedif_flower.errors import ConfigError
from fedif_flower.valuation import Validation
from fedif_flower.valuation.class_noise import (
    enough_of_each_class,
    likely_transitions,
    surest_transitions,
)
from fedif_flower.valuation.examination import vet
from fedif_flower.valuation.held_out import HeldOut, confused_share
from fedif_flower.valuation.held_out_check import HeldOutCheck


def sure(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Logits ``[1, n, C]`` of a model that knows the classes."""
    return 50.0 * nn.functional.one_hot(classes, num_classes)[None].float()


def test_hand_computed_chances_of_the_surest():
    """Of 20 answers 0 the surest 8 count: 2 of their labels are 1; of 20 answers 1 none is wrong.

    The mean over both is 2 wrong of 16, 1/8: rows are (6 + 4 * 7/8, 2 + 4 / 8) / 12 and
    (0 + 4 / 8, 8 + 4 * 7/8) / 12.
    """
    classes = torch.arange(40) // 20
    labels = classes.clone()
    labels[:2] = 1  # Ties keep their order: the first eight are taken.
    labels[19] = 1  # Not among them.
    chances = surest_transitions(sure(classes, 2), labels)
    expected = torch.tensor([[9.5, 2.5], [0.5, 11.5]], dtype=torch.float64) / 12
    torch.testing.assert_close(chances, expected)


def test_a_model_that_knows_the_classes_tells_the_chances():
    """EM has nothing to guess: of 100 examples of class 0, 30 are labelled 1; mean 30 of 200.

    Row 0 is (70 + 4 * 0.85, 30 + 4 * 0.15) / 104.
    """
    classes = torch.arange(200) // 100
    labels = classes.clone()
    labels[:30] = 1
    start = torch.tensor([[0.8, 0.2], [0.2, 0.8]], dtype=torch.float64)
    found = likely_transitions(sure(classes, 2), labels, start)
    chances = found.transitions
    assert chances[0].tolist() == pytest.approx([73.4 / 104, 30.6 / 104], abs=1e-6)
    assert chances[1].tolist() == pytest.approx([0.6 / 104, 103.4 / 104], abs=1e-6)
    # Both classes are as frequent: (30.6 / 104 + 0.6 / 104) / 2.
    assert found.share == pytest.approx(0.15, abs=1e-6)


def test_a_right_label_is_the_likeliest_whatever_the_estimate():
    """Of class 0, 60 of 100 labels are 1; of class 1 none is wrong: rows (0.4, 0.6) and (0, 1).

    S has 0.7 and 0.3; the weight is 0.9 * 0.4 / (0.4 + 0.2) = 0.6. Row 0 is 0.6 * 0.4 + 0.4 * 0.7
    = 0.52 then. (Chances are drawn towards their mean before, which changes the third digit.)
    """
    classes = torch.arange(2000) // 1000
    labels = classes.clone()
    labels[:600] = 1
    start = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    chances = likely_transitions(sure(classes, 2), labels, start).transitions
    assert chances[0, 0] == pytest.approx(0.52, abs=0.005)
    assert chances.sum(dim=1).tolist() == pytest.approx([1, 1])


def test_a_label_that_no_answer_allows_for_stops_no_examination():
    """The model is so sure of class 1 that a float has no chance for label 0, of which T has none.

    All labels are 0 by either class's right: so both examples are of class 0, and none is wrong.
    """
    logits = torch.tensor([[[0.0, 1e4]] * 2])
    found = likely_transitions(logits, torch.tensor([0, 0]), torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(found.transitions, torch.eye(2, dtype=torch.float64))
    assert found.share == 0


def test_labels_that_say_nothing_have_chances_all_the_same():
    """Of either class 60 of 100 labels are the other's: more than symmetric chances can have.

    S is at .95 of what is allowed, .475, so rows are (40 + 4 * .525) / 104 = .4048, and .5952. The
    weight is .9 * .05 / (.05 + .1904) = .1872: the right label has .1872 * .4048 + .8128 * .525.
    """
    classes = torch.arange(200) // 100
    labels = classes.clone()
    labels[:60] = 1
    labels[100:160] = 0
    start = torch.tensor([[0.6, 0.4], [0.4, 0.6]], dtype=torch.float64)
    chances = likely_transitions(sure(classes, 2), labels, start).transitions
    assert chances.diagonal().tolist() == pytest.approx([0.5025, 0.5025], abs=1e-3)


def test_no_class_is_said_to_be_confused_with_itself():
    """Two classes have two pairs, where three are named of more."""
    two = HeldOut(
        100, noise=0.0, low=0.0, high=0.0, by_class=0.3, transitions=((0.6, 0.4), (0.2, 0.8))
    )
    assert "may be confused, 0 as 1 (40 %), 1 as 0 (20 %), or a model" in two.words()


def test_where_no_example_is_told_none_is_counted():
    """Records of secret data have none: which they are would tell the data."""
    secret = HeldOut(
        100, noise=0.0, low=0.0, high=0.0, by_class=0.3, transitions=((0.6, 0.4), (0.2, 0.8))
    )
    assert "suspects" not in secret.words()


def test_classes_that_nobody_names_are_no_obstacle():
    labels = torch.arange(60) % 3
    assert enough_of_each_class(labels, 5)
    assert not enough_of_each_class(labels[:-1], 5)
    assert enough_of_each_class(labels, 100)
    assert not enough_of_each_class(labels, 101)


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:500]
    return torch.tensor(images / 16, dtype=torch.float32)[rows], torch.tensor(labels)[rows].long()


PARTNERS = torch.tensor([2, 7, 0, 8, 9, 6, 5, 1, 3, 4])


def examined(digits: tuple[torch.Tensor, torch.Tensor], wrong: int) -> HeldOut:
    images, labels = digits
    given = labels.clone()
    given[:wrong] = PARTNERS[labels[:wrong]]
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return vet(Validation(model, images, given, device="cpu"), seed=1)


def test_labels_that_are_confused_are_seen_though_they_look_right_by_chance(digits):
    found = examined(digits, 150)
    assert found.correction == 0  # Each class's labels are a mixture that a model learns.
    assert 0.2 <= found.confused <= 0.45
    chances = torch.tensor(found.transitions)
    off_diagonal = chances - torch.diag(chances.diagonal())
    assert int((off_diagonal.argmax(dim=1) == PARTNERS).sum()) >= 9
    assert "but up to" in found.words()
    assert "% may be confused, " in found.words()
    # The examples are named, and their classes.
    wrong = [suspect for suspect in found.suspects if suspect.index < 150]
    assert len(wrong) >= 0.7 * len(found.suspects)
    assert len(wrong) >= 90
    right = digits[1]
    assert sum(suspect.likely == right[suspect.index] for suspect in wrong) >= 0.9 * len(wrong)
    assert f"{len(found.suspects)} suspects in held_out.csv" in found.words("held_out.csv")


def test_right_labels_are_not_called_confused(digits):
    found = examined(digits, 0)
    assert found.by_class <= 0.05
    assert found.confused == 0
    assert "confused" not in found.words()


@pytest.mark.parametrize(
    ("noise", "by_class", "share"),
    [(0.0, 0.09, 0.0), (0.0, 0.11, 0.11), (0.3, 0.35, 0.0), (None, None, 0.0)],
)
def test_what_models_confuse_by_themselves_is_no_finding(noise, by_class, share):
    assert confused_share(noise, by_class) == share


def test_chances_are_taken_where_they_are_asked_for_and_known():
    check = HeldOutCheck(noise="by-class")
    found = HeldOut(500, noise=0.0, transitions=((0.75, 0.25), (0.5, 0.5)))
    assert check.noise_of(found).tolist() == [[0.75, 0.25], [0.5, 0.5]]
    with pytest.raises(ConfigError, match="needs an examination: vet = true"):
        check.noise_of(None)
    words = "no estimate by class: each class that has labels needs 20, there may be 100 classes"
    with pytest.raises(ConfigError, match=words):
        check.noise_of(HeldOut(500, noise=0.0))
    with pytest.raises(ConfigError, match="no estimate by class: targets are no classes"):
        check.noise_of(HeldOut(500, why_none="targets are no classes"))


def test_it_is_read_from_its_record(digits):
    found = examined(digits, 150)
    assert HeldOut.from_record(found.to_record()) == found
