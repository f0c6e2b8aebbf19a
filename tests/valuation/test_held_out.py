"""A held-out set examined: wrong labels by share and by example, classes, copies."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import replace
from functools import cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from fedif_flower.errors import ConfigError
from fedif_flower.valuation import Validation, cross_fit, examination
from fedif_flower.valuation.examination import vet
from fedif_flower.valuation.examples import labelled_examples
from fedif_flower.valuation.fit_grid import Way
from fedif_flower.valuation.held_out import HeldOut
from fedif_flower.valuation.held_out_check import HeldOutCheck
from fedif_flower.valuation.noise_profile import Suspect, find_suspects, profile
from fedif_flower.valuation.subsets import missing_classes

COUNT = 120


@cache
def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:COUNT]
    return torch.tensor(images / 16, dtype=torch.float32)[rows], torch.tensor(labels)[rows].long()


def with_wrong(labels: Tensor, count: int) -> Tensor:
    """Replace the first labels by another class each."""
    draw = torch.randint(1, 10, (count,), generator=torch.Generator().manual_seed(1))
    return torch.cat([(labels[:count] + draw) % 10, labels[count:]])


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def held_out(labels: Tensor, model: nn.Module | None = None, **more) -> Validation:
    return Validation(
        model or perceptron(), digits()[0][: len(labels)], labels, device="cpu", **more
    )


@cache
def found(wrong: int) -> HeldOut:
    return vet(held_out(with_wrong(digits()[1], wrong)), seed=3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda labels: vet(5), "validation = 5; allowed: a Validation"),
        (lambda labels: vet(held_out(labels), test=5), "test = 5; allowed: a Validation"),
        (lambda labels: vet(held_out(labels), seed=0.5), "seed = 0.5; allowed: an integer >= 0"),
        (lambda labels: vet(held_out(labels), seconds="1"), "seconds = '1'; allowed: a number > 0"),
        (lambda labels: held_out(labels, noise="0.1"), "noise = '0.1'; allowed: a number >= 0, or"),
        (lambda labels: held_out(labels, measures=[len]), r"measures = \[.*; allowed: a mapping"),
    ],
)
def test_what_is_no_argument_is_named(make, words):
    with pytest.raises(ConfigError, match=f"^{words}"):
        make(digits()[1])


@pytest.mark.parametrize(
    ("wrong", "least", "most"), [(0, 0, 0.03), (12, 0.03, 0.2), (36, 0.2, 0.45)]
)
def test_the_share_of_wrong_labels_lies_in_its_band(wrong, least, most):
    own = found(wrong)
    assert least <= own.noise <= most
    assert own.low <= own.noise <= own.high
    assert own.low <= wrong / COUNT <= own.high


def test_clean_labels_are_corrected_for_nothing_and_have_no_suspects():
    own = found(0)
    assert (own.correction, own.suspects) == (0.0, ())
    none = replace(own, noise=0.0, high=0.03)
    assert none.words().startswith("none of the held-out labels looks wrong (0 to 3 %)")
    assert own.accuracy > 0.8


def test_suspects_are_mostly_those_that_are_wrong_and_say_the_right_class():
    own, right = found(36), digits()[1]
    wrong = [one for one in own.suspects if one.index < 36]
    assert len(wrong) >= 25
    assert len(wrong) >= 0.6 * len(own.suspects)
    assert sum(one.likely == right[one.index] for one in wrong) >= 0.8 * len(wrong)
    assert f"look wrong: {len(own.suspects)} suspects in mine.csv" in own.words("mine.csv")
    assert f"look wrong: {len(own.suspects)} suspects;" in f"{own.words()};"


def test_it_is_the_same_again_and_leaves_no_trace():
    judge = held_out(with_wrong(digits()[1], 36))
    before, state = judge.params(), torch.get_rng_state()
    own = vet(judge, seed=3)
    assert torch.equal(judge.params(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert own.suspects == found(36).suspects
    assert (own.noise, own.low, own.high) == (found(36).noise, found(36).low, found(36).high)


def test_it_is_read_from_its_record():
    assert HeldOut.from_record(found(36).to_record()) == found(36)


def test_models_with_buffers_and_dropout_are_trained_one_by_one():
    model = nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    )
    own = vet(held_out(with_wrong(digits()[1], 36), model))
    assert 0.15 <= own.noise <= 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_of_half_precision_are_trained_too(dtype):
    """In float16 a slope's square is 0, and so is what keeps Adam from dividing by it."""
    labels = with_wrong(digits()[1], 36)
    judge = Validation(perceptron().to(dtype), digits()[0].to(dtype), labels, device="cpu")
    assert 0.15 <= vet(judge, seed=3).noise <= 0.5


class Diverging(nn.Linear):
    """Answers no number once a step has made a weight negative."""

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1e-3)
        nn.init.zeros_(self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.weight.sqrt(), self.bias)


def test_models_that_diverge_tell_nothing():
    own = vet(held_out(with_wrong(digits()[1], 36), Diverging(64, 10)))
    assert own.noise is None
    assert "not known: models trained on it give no finite numbers" in own.words()


@pytest.mark.parametrize(
    ("seconds_per_epoch", "words"),
    [
        # 96 examples are trained on: 50 epochs for each of two shares, for one, then 25.
        ([0.005], "10 trainings of 50 epochs on 5 folds"),
        ([0.015], "5 trainings of 50 epochs on 5 folds, fewer than usual to save time"),
        ([0.03], "5 trainings of 25 epochs on 5 folds, fewer than usual to save time"),
        ([0.05, 0.0], "logistic regression on the features of the untrained model"),
    ],
)
def test_too_little_time_trains_less_then_a_regression(monkeypatch, seconds_per_epoch, words):
    answers = iter([*seconds_per_epoch, 99.0])  # There is no time for chances by class.
    judge = held_out(digits()[1])
    with monkeypatch.context() as patched:
        patched.setattr(cross_fit, "_seconds_per_epoch", lambda *_: next(answers))
        own = vet(judge, seconds=1)
    assert own.how.startswith(words)
    was_cut_short = words != "10 trainings of 50 epochs on 5 folds"
    assert ("the examination was cut short" in own.words()) == was_cut_short
    # Whoever examines it in the same way has the time that it takes, and finds the same.
    again = vet(judge, seconds=1e-6, way=own.way)
    assert replace(again, seconds=own.seconds) == own


@pytest.mark.parametrize("count", [10, 13])
def test_no_model_is_asked_about_an_example_that_it_was_trained_on(count):
    """Of 13 examples, folds have 3, 3, 3, 2 and 2; each model is trained on 10 of the others."""
    folds = cross_fit.draw_folds(count, torch.Generator().manual_seed(0))
    most = -(-count // 5)
    assert folds.training.shape == (5, count - most)
    assert folds.tested.shape == (5, most)
    asked: list[int] = []
    for training, tested in zip(folds.training.tolist(), folds.tested.tolist(), strict=True):
        assert len(set(training)) == len(training)
        assert not set(training) & set(tested)
        asked += set(tested)
    assert sorted(asked) == list(range(count))


def test_held_out_models_are_trained_by_adam():
    """Three steps as torch's, from 0, by slopes whose size and sign change."""
    ours, theirs = torch.zeros(3, dtype=torch.float64), nn.Parameter(torch.zeros(3).double())
    adam = cross_fit._Adam([ours])
    reference = torch.optim.Adam([theirs], lr=cross_fit.LEARNING_RATE)
    for slope in ([1.0, -2.0, 0.5], [0.1, 4.0, 0.5], [-3.0, 1.0, 0.5]):
        adam.step([torch.tensor(slope, dtype=torch.float64)])
        theirs.grad = torch.tensor(slope, dtype=torch.float64)
        reference.step()
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=0.0)


def test_held_out_models_may_have_sparse_gradients():
    table = nn.Embedding(3, 2, sparse=True)
    before = table.weight.detach().clone()
    (slope,) = torch.autograd.grad(table(torch.tensor([1, 1])).sum(), [table.weight])
    cross_fit._Adam([table.weight]).step([slope])
    moved = before - table.weight.detach()
    expected = cross_fit.LEARNING_RATE * torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6)


def test_a_way_in_which_the_set_cannot_be_examined_is_refused():
    with pytest.raises(ConfigError, match="120 examples cannot be examined like this"):
        vet(held_out(digits()[1]), way=Way("own", 7, 50))


def test_no_time_gives_no_estimate(monkeypatch):
    monkeypatch.setattr(cross_fit, "_seconds_per_epoch", lambda *_: 99.0)
    own = vet(held_out(digits()[1]), seconds=1)
    assert own.noise is None
    assert "it would take more than 1 s" in own.words()


class Slow(nn.Linear):
    """Takes half a second for a pass: some two hundred seconds for the smallest grid."""

    def forward(self, inputs: Tensor) -> Tensor:
        passes.append(1)
        time.sleep(0.5)
        return super().forward(inputs)


passes: list[int] = []


def test_measuring_how_long_it_takes_is_bounded_too():
    """Two steps tell it; for a regression all examples are looked at once."""
    judge = held_out(digits()[1], Slow(64, 10))
    passes.clear()
    own = vet(judge, seconds=40)  # Enough for the regression on a machine that is busy.
    assert own.how.startswith("logistic regression on the features of the untrained model")
    # Beside these three, one pass tells how many classes there are.
    assert len(passes) <= 4


def test_how_long_it_will_take_is_said_before_a_model_is_trained(monkeypatch, caplog):
    said: list[str] = []

    def train(*_):
        said.append(caplog.text)
        raise ValueError

    monkeypatch.setattr(cross_fit, "_seconds_per_epoch", lambda *_: 0.1234)  # Of 100 epochs.
    monkeypatch.setattr(cross_fit, "_train", train)
    words = "the held-out set is examined: 10 trainings of .* epochs on 5 folds, about 12.3 s"
    with caplog.at_level(logging.INFO):
        vet(held_out(digits()[1]))
    assert re.search(words, said[0])


class TwoAnswers(nn.Linear):
    """Answers a pair in train mode, as a model with a second head does."""

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        outputs = super().forward(inputs)
        return (outputs, outputs) if self.training else outputs


class OfTens(nn.Linear):
    """Takes ten examples at a time."""

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) != 10:
            raise ValueError(f"{len(inputs)} examples\n")
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (TwoAnswers, "AttributeError(\"'tuple' object has no attribute 'float'\")"),
        (OfTens, "ValueError('32 examples\\n')"),
    ],
)
def test_a_model_that_cannot_be_trained_so_has_classes_and_copies_alone(kind, words):
    """A fold's 96 examples are taken 32 at a time."""
    judge = held_out(digits()[1].where(digits()[1] != 3, 4), kind(64, 10), batch_size=10)
    own = vet(judge)
    assert (own.noise, own.missing) == (None, (3,))
    assert missing_classes(judge) == [3]
    assert own.why_none == f"the model cannot be trained on it: {words}"
    with pytest.raises(ConfigError, match=re.escape(f"no estimate by class: {own.why_none}")):
        HeldOutCheck(noise="by-class").noise_of(own)
    with pytest.raises(
        ConfigError, match=re.escape(f"cannot be examined like this: {own.why_none}")
    ):
        vet(judge, way=Way("own", 7, 50))


def test_training_by_class_that_fails_leaves_the_share(monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(examination, "enough_of_each_class", lambda *_: True)
    monkeypatch.setattr(examination, "cross_fit", fail)
    own = vet(held_out(with_wrong(digits()[1], 36)), seed=3)
    assert (own.noise, own.by_class) == (found(36).noise, None)
    words = "no chances by class: the model cannot be trained on it: RuntimeError('out of memory')"
    assert words in caplog.text


class ByName(nn.Module):
    """Gives its layer the input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(input=inputs)


def test_a_layer_may_be_given_its_input_by_name():
    """Features are 1, 2 and 3: their mean is 2, their deviation 1."""
    batch = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0])
    features = cross_fit.features_of(ByName(), batch, seconds=60)
    assert features.flatten().tolist() == [-1, 0, 1]


class OfTokens(nn.Module):
    """Sums up what a layer answers for each of two tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.layer.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.reshape(-1, 1)).reshape(-1, 2).sum(dim=1, keepdim=True)


def test_a_layer_that_is_given_other_rows_than_examples_has_no_features_of_these():
    """Outputs are 3, 5 and 7: their mean is 5, their deviation 2."""
    batch = torch.tensor([[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]), torch.tensor([0, 1, 0])
    features = cross_fit.features_of(OfTokens(), batch, seconds=60)
    assert features.flatten().tolist() == [-1, 0, 1]


def test_few_examples_have_no_estimate():
    own = vet(held_out(digits()[1][:49]))
    assert own.noise is None
    assert own.correction == 0
    assert "49 examples are too few; at least 50 are needed" in own.words()


def test_missing_and_rare_classes_are_named():
    _, labels = digits()
    without = labels.where(labels != 3, 4)
    own = vet(held_out(without.where(without != 7, 8)[:30]))
    assert own.missing == (3, 7)
    assert own.rare[0] == int((labels[:30] == 0).sum())
    assert "no held-out example counts for the classes 3, 7" in own.words()


def test_copies_are_counted_within_a_split_and_between_two():
    inputs, labels = digits()
    twice = Validation(
        perceptron(),
        torch.cat([inputs[:30], inputs[:2]]),
        torch.cat([labels[:30], labels[:2]]),
        device="cpu",
    )
    test = Validation(perceptron(), inputs[29:60], labels[29:60], device="cpu")
    own = vet(twice, test=test)
    assert (own.copies, own.shared) == (2, 1)
    assert "2 of 32 held-out inputs repeat an earlier one" in own.words()
    assert "1 of them are in the test split, too" in own.words()


@pytest.mark.parametrize("tokens", [7, 0.01])
def test_examples_are_counted_whatever_each_weighs_in_the_loss(tokens):
    """A loss of tokens says how many tokens a batch has, not how many examples."""

    def by_token(model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels), tokens * len(labels)

    inputs, labels = digits()
    data = (torch.cat([inputs[:30], inputs[:2]]), torch.cat([labels[:30], labels[:2]]))
    own = vet(Validation(perceptron(), data, batch_loss=by_token, device="cpu"))
    assert own.examples == 32
    assert "2 of 32 held-out inputs repeat an earlier one" in own.words()


@pytest.mark.parametrize(
    ("loss_fn", "targets", "words"),
    [
        (functional.mse_loss, torch.rand(COUNT, 10), "targets are no classes"),
        (
            lambda outputs, labels: functional.cross_entropy(outputs, labels) * 2,
            None,
            "the loss is no cross-entropy of torch",
        ),
        (
            lambda outputs, labels: functional.cross_entropy(outputs, labels + 1),
            digits()[1] - 1,
            "its labels are not among the model's classes, 0 to 9",
        ),
    ],
)
def test_other_losses_have_sizes_and_copies_alone(loss_fn, targets, words):
    own = vet(held_out(digits()[1] if targets is None else targets, loss_fn=loss_fn))
    assert own.noise is None
    assert own.examples == COUNT
    assert words in own.words()


def test_ignored_targets_keep_the_places_of_the_others():
    labels = with_wrong(digits()[1], 36).clone()
    labels[:10] = -100
    own = vet(held_out(labels))
    assert own.examples == COUNT - 10
    assert min(one.index for one in own.suspects) >= 10


@pytest.mark.parametrize("batch_size", [COUNT, 5])
def test_places_are_those_of_the_data_however_it_is_cut(batch_size):
    labels = with_wrong(digits()[1], 36).clone()
    ignored = torch.arange(COUNT) % 10 < 5  # Five in a row, then five that count.
    of_all = held_out(labels.where(~ignored, -100), batch_size=batch_size)
    assert len(of_all.batches) == (1 if batch_size == COUNT else COUNT // 10)
    batch, places = labelled_examples(of_all)
    assert places.tolist() == (~ignored).nonzero().flatten().tolist()
    assert torch.equal(batch[-1], labels[places])


@pytest.mark.parametrize("batch_size", [40, 10])
def test_copies_are_counted_among_the_examples_that_count(batch_size):
    inputs, labels = digits()
    four_times = torch.cat([inputs[:10]] * 4)
    targets = torch.cat([torch.full((20,), -100), labels[:10], labels[:10]])
    own = vet(Validation(perceptron(), four_times, targets, device="cpu", batch_size=batch_size))
    assert (own.copies, own.examples) == (10, 20)


def test_examples_of_a_class_that_weighs_nothing_do_not_count():
    weights = torch.tensor([0.0] + [1.0] * 9)
    labels = torch.tensor([0, 1] * 5)
    own = vet(held_out(labels, loss_fn=nn.CrossEntropyLoss(weight=weights)))
    assert own.examples == 5
    assert own.why_none.startswith("5 examples are too few")
    # There are five of class 0, which say as little of it as none would.
    assert own.missing == (0, *range(2, 10))
    assert "no held-out example counts for the classes 0, 2, 3" in own.words()


def test_hand_computed_suspects():
    """Thresholds are 0.6 and 0.7: the third is of class 1, the last of none."""
    of_zero = torch.tensor([0.9, 0.8, 0.1, 0.2, 0.4])
    probabilities = torch.stack([of_zero, 1 - of_zero], dim=1).double()
    labels = torch.tensor([0, 0, 0, 1, 1])
    (one,) = find_suspects(probabilities, labels, 5)
    assert one == Suspect(2, 0, 1, pytest.approx(0.9))
    assert find_suspects(probabilities, labels, 0) == []


@pytest.mark.parametrize("seed", range(4))
def test_suspects_are_those_of_cleanlab_in_its_order(seed):
    """The reference implementation of confident learning, by the authors of its paper."""
    from cleanlab.filter import find_label_issues  # Takes seconds to import.

    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (200,), generator=generator)
    is_clear = torch.rand(200, 1, generator=generator) > 0.25
    noise = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    probabilities = (noise + 2 * functional.one_hot(labels, 4) * is_clear).softmax(dim=1)
    theirs = find_label_issues(
        labels.numpy(),
        probabilities.numpy(),
        filter_by="confident_learning",
        return_indices_ranked_by="normalized_margin",
        n_jobs=1,
    )
    ours = [suspect.index for suspect in find_suspects(probabilities, labels, 200)]
    assert len(ours) > 10
    assert ours == theirs.tolist()


def test_hand_computed_profile():
    """Nine of ten labels are sure to be right, one to be wrong: the share is a tenth."""
    logits = torch.zeros(1, 100, 10)
    logits[:, :, 0] = 50.0
    labels = torch.zeros(100, dtype=torch.long)
    labels[:10] = 1
    own = profile(logits, labels, torch.Generator().manual_seed(0))
    assert own.noise == 0.1
    assert 0.03 <= own.low <= 0.1 <= own.high <= 0.2
    assert own.low <= own.lower_quartile <= own.noise


@pytest.mark.parametrize(("wrong", "corrected_for"), [(1, 0.0), (2, 0.03)])
def test_a_quarter_of_draws_without_a_wrong_label_is_where_correction_ends(wrong, corrected_for):
    """Of draws of 100 examples, 0.99^100 = 37 % have none of one, 0.98^100 = 13 % none of two."""
    logits = torch.zeros(1, 100, 10)
    logits[:, :, 0] = 50.0
    labels = torch.zeros(100, dtype=torch.long)
    labels[:wrong] = 1
    own = profile(logits, labels, torch.Generator().manual_seed(0))
    assert own.low == 0.0
    assert own.lower_quartile == corrected_for
    held_out = HeldOut(100, own.noise, own.low, own.high, own.lower_quartile)
    assert held_out.correction == corrected_for


def test_what_is_corrected_for():
    sure = HeldOut(100, noise=0.3, low=0.2, high=0.4, lower_quartile=0.25)
    likely = HeldOut(100, noise=0.1, low=0.0, high=0.25, lower_quartile=0.03)
    unsure = HeldOut(100, noise=0.1, low=0.0, high=0.25, lower_quartile=0.0)
    assert HeldOutCheck().noise_of(sure) == 0.3
    assert HeldOutCheck().noise_of(likely) == 0.1
    assert "about 10 % (0 to 25 %) of the held-out labels look wrong" in likely.words()
    assert HeldOutCheck().noise_of(unsure) == 0.0
    assert HeldOutCheck().noise_of(None) == 0.0
    assert HeldOutCheck(noise="off").noise_of(sure) == 0.0
    assert HeldOutCheck(noise=0.2).noise_of(sure) == 0.2
    words = "about 10 % (0 to 25 %) of the held-out labels may be wrong, but possibly none is"
    assert words in unsure.words()


@pytest.mark.parametrize(
    "settings", [{"noise": 0.91}, {"noise": -0.1}, {"noise": "on"}, {"seconds": 0}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        HeldOutCheck(**settings)


def test_seconds_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="seconds = 0; allowed: a number > 0"):
        vet(held_out(digits()[1]), seconds=0)


def test_places_are_those_of_the_data_where_a_loader_would_shuffle_them():
    """Twelve labels are wrong, and lie first: most of the suspects are among them."""
    wrong = with_wrong(digits()[1], 36)
    data = TensorDataset(digits()[0], wrong)
    shuffled = Validation(perceptron(), DataLoader(data, 30, shuffle=True), device="cpu")
    batch, places = labelled_examples(shuffled)
    assert places.tolist() == list(range(COUNT))
    assert torch.equal(batch[-1], wrong)


def test_a_loader_that_draws_a_part_of_its_data_is_read_as_it_draws():
    torch.manual_seed(0)
    data = TensorDataset(*digits())
    drawn = DataLoader(data, sampler=RandomSampler(data, num_samples=20), batch_size=20)
    assert Validation(perceptron(), drawn, device="cpu").num_examples == 20


class OfTexts(nn.Module):
    """Classes of texts, by their lengths and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, texts, numbers):
        lengths = torch.tensor([float(len(text)) for text in texts])
        return self.linear(torch.stack([lengths, numbers], dim=1))


def test_copies_among_texts_are_told_apart():
    """Of eight texts the last is the first again, and a number that differs makes two of one."""
    texts = ["ab", "c", "cd", "ef", "gh", "ij", "ij", "ab"]
    numbers = torch.tensor([0.0, 0, 0, 0, 0, 0, 1, 0])
    labels = torch.arange(8) % 3
    batches = [(texts[i : i + 4], numbers[i : i + 4], labels[i : i + 4]) for i in (0, 4)]
    assert vet(Validation(OfTexts(), batches, device="cpu")).copies == 1


class OfSequences(nn.Module):
    """Classes of sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.linear = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.linear(self.embedding(tokens).mean(dim=1))


def test_sequences_that_are_padded_for_each_batch_have_no_estimate():
    labels = torch.arange(30) % 3
    batches = [(torch.arange(30 * length).reshape(30, length) % 20, labels) for length in (5, 7)]
    own = vet(Validation(OfSequences(), batches, device="cpu"))
    assert (own.examples, own.noise) == (60, None)
    assert own.why_none == "its batches cannot be divided into examples that fit into one batch"
