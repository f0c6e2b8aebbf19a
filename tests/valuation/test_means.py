"""A mean over a validation set is the mean over its batches, in however many threads."""

from __future__ import annotations

import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import sleep

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.devices import torch_threads
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.valuation import Validation
from fedif_flower.valuation.class_mean import BatchSize, ClassMean, class_mean
from fedif_flower.valuation.objective import are_right
from fedif_flower.valuation.parallel import LossAndGradient, SharedGradients
from fedif_flower.valuation.shapley.valuation import RoundGame
from fedif_flower.valuation.subsets import missing_classes
from tests.rounds import a_round
from tests.tolerance import rounding
from tests.valuation.models import build, whole

CLASSES, PAD = 3, -100
SINGLE = rounding(torch.float32)
WEIGHTS = torch.tensor([1.0, 4.0, 0.25])
GENERATOR = torch.Generator().manual_seed(1)
ROWS = torch.randn(40, 5, generator=GENERATOR)
LABELS = torch.randint(CLASSES, (40,), generator=GENERATOR).sort().values  # As folders have them.
SOME = torch.where(torch.arange(40) < 12, PAD, LABELS)  # The first twelve are ignored.


judged = partial(Validation, device="cpu")


def linear() -> nn.Module:
    return build(nn.Linear, 5, CLASSES)


class LogSoftmax(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows).log_softmax(1)


def agree(validation: Validation, loss: float, gradient: Tensor, tolerance=SINGLE) -> None:
    params = validation.params()
    assert validation.loss(params) == pytest.approx(loss, rel=tolerance)
    assert validation.evaluate(params).loss == pytest.approx(loss, rel=tolerance)
    found = validation.loss_and_gradient(params)
    assert found.loss == pytest.approx(loss, rel=tolerance)
    assert (found.gradient - gradient).norm() <= tolerance * gradient.norm()


LOSSES = [
    nn.CrossEntropyLoss(weight=WEIGHTS),
    nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1),
    partial(partial(functional.cross_entropy, weight=None), weight=WEIGHTS),
    functional.cross_entropy,
    partial(functional.nll_loss, weight=WEIGHTS, ignore_index=2),
]


@pytest.mark.parametrize("batch_size", [1, 12])
@pytest.mark.parametrize("are_some_ignored", [False, True])
@pytest.mark.parametrize("loss_fn", LOSSES, ids=range(len(LOSSES)))
def test_the_mean_does_not_depend_on_the_batches(loss_fn, are_some_ignored, batch_size):
    module = build(LogSoftmax, 5, CLASSES)
    ignored = class_mean(loss_fn).ignored
    targets = LABELS.masked_fill(SOME == PAD, ignored) if are_some_ignored else LABELS
    validation = judged(module, ROWS, targets, loss_fn=loss_fn, batch_size=batch_size)
    agree(validation, *whole(module, loss_fn, ROWS, targets))


@pytest.mark.parametrize("loss_fn", [functional.cross_entropy, LOSSES[0]], ids=["plain", "weights"])
def test_a_mean_over_tokens_is_over_those_that_are_not_ignored(loss_fn):
    class Tokens(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:  # [n, length, features] -> [n, classes, length]
            return super().forward(rows).transpose(1, 2)

    inputs = torch.randn(9, 6, 5, generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor([1, 6, 2, 3, 0, 6, 5, 1, 4])
    targets = torch.arange(54).view(9, 6) % CLASSES
    targets[torch.arange(6) >= lengths[:, None]] = PAD
    module = build(Tokens, 5, CLASSES)
    validation = judged(module, inputs, targets, loss_fn=loss_fn, batch_size=2)
    agree(validation, *whole(module, loss_fn, inputs, targets))
    assert validation.num_examples == 8  # One has no token.


def test_sizes_by_hand():
    mean = ClassMean(PAD, WEIGHTS)
    assert mean.size(torch.tensor([0, 1, PAD, 1])) == BatchSize(3, 9.0)
    # Of the second one every pixel is ignored.
    assert mean.size(torch.tensor([[0, PAD], [PAD, PAD]])) == BatchSize(1, 1.0)
    assert mean.size(torch.tensor([[PAD, PAD]])) == BatchSize(0, 0)
    assert mean.size(torch.tensor([PAD])) == BatchSize(0, 0)
    assert ClassMean(PAD).size(torch.tensor([0, 1, PAD, 1])) == BatchSize(3, 3)
    assert ClassMean(PAD, WEIGHTS).size(torch.zeros(4, CLASSES)) == BatchSize(4, 4)
    assert ClassMean(PAD).size(torch.zeros(4, CLASSES, 5)) == BatchSize(4, 20)
    with pytest.raises(ValuationError, match="targets are 1 to 3; allowed with 3 class weights"):
        mean.size(torch.tensor([1, 3]))


def test_an_answer_that_is_no_number_is_not_right():
    inf, nan = math.inf, math.nan
    answers = [[inf, inf], [nan, nan], [nan, 2.0], [1.0, nan], [inf, 0.0], [-inf, -inf]]
    assert not are_right(torch.tensor(answers), torch.zeros(6, dtype=torch.int64)).any()
    # Classes that a model leaves out, and two that are alike: the first one is chosen.
    answers = torch.tensor([[-inf, 0.0], [3.0, -inf], [1.0, 1.0], [1.0, 2.0]])
    assert are_right(answers, torch.tensor([1, 0, 0, 0])).tolist() == [True, True, True, False]
    # The accuracy of a model that has diverged: of its two answers, both were class 0.
    module = linear()
    validation = judged(module, ROWS[:2], torch.zeros(2, dtype=torch.int64))
    assert validation.accuracy(torch.full_like(validation.params(), nan)) == 0.0


def test_smoothed_labels_beside_a_class_that_weighs_nothing_are_refused():
    """Torch adds the smoothing of examples of that class: its loss hung on the batches."""
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0, 1.0]), label_smoothing=0.1)
    with pytest.raises(ValuationError, match=r"label_smoothing = 0\.1 beside a class weight of 0"):
        judged(linear(), ROWS, LABELS, loss_fn=loss_fn)
    # Of probabilities no example weighs nothing.
    answers = functional.one_hot(LABELS, CLASSES).float()
    module = linear()
    validation = judged(module, ROWS, answers, loss_fn=loss_fn, batch_size=7)
    agree(validation, *whole(module, loss_fn, ROWS, answers))


class Own(nn.CrossEntropyLoss):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().forward(outputs, targets).square()


def test_a_batch_of_ignored_targets_says_nothing():
    module = linear()
    validation = judged(module, ROWS, SOME, batch_size=4)
    kept = SOME != PAD
    agree(validation, *whole(module, functional.cross_entropy, ROWS[kept], SOME[kept]))
    right = (module(ROWS[kept]).argmax(1) == SOME[kept]).double().mean().item()
    assert validation.accuracy(validation.params()) == right
    assert validation.num_examples == 28
    assert missing_classes(validation) == sorted({0, 1, 2} - set(SOME[kept].tolist()))
    with pytest.raises(ValuationError, match="counts none of its targets"):
        judged(linear(), ROWS, torch.full((40,), PAD))


REFUSED = [
    lambda o, t: functional.cross_entropy(o, t, weight=WEIGHTS),
    lambda o, t: functional.cross_entropy(o, t, ignore_index=1),
    nn.CrossEntropyLoss(reduction="sum"),
    partial(functional.cross_entropy, size_average=False),
    Own(),
]


@pytest.mark.parametrize("batch_size", [1, 7, 100])
@pytest.mark.parametrize("loss_fn", REFUSED, ids=["weights", "ignored", "sum", "no mean", "own"])
def test_a_loss_that_is_no_mean_is_refused_at_construction(loss_fn, batch_size):
    with pytest.raises(ConfigError, match=r"loss_fn gives .* batch_loss\(model, batch\)"):
        judged(linear(), ROWS, LABELS, loss_fn=loss_fn, batch_size=batch_size)


@pytest.mark.parametrize("loss_fn", REFUSED[:1], ids=["weights"])
def test_a_loss_that_looks_like_a_mean_at_a_model_of_zeros_is_refused(loss_fn):
    """Each example's loss is log 3 there, whatever it weighs."""
    model = linear()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(ConfigError, match=r"loss_fn gives .* batch_loss\(model, batch\)"):
        judged(model, ROWS, LABELS, loss_fn=loss_fn, batch_size=7)


def test_a_batch_loss_that_looks_like_a_mean_at_a_model_of_zeros_is_warned_of(caplog):
    """Each example's loss is log 3 there; elsewhere the size is not what it divides by."""

    def weighted(model, batch):
        rows, labels = batch
        return functional.cross_entropy(model(rows), labels, weight=WEIGHTS), len(labels)

    model = linear()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    judged(model, (ROWS, LABELS), batch_loss=weighted, batch_size=7)
    (message,) = caplog.messages
    assert message.startswith("batch_loss gives ")


def test_a_sample_is_drawn_after_a_model_that_diverged():
    def mean(model, batch):
        return functional.cross_entropy(model(batch["rows"]), batch["labels"]), len(batch["labels"])

    batches = [{"rows": ROWS[i : i + 10], "labels": LABELS[i : i + 10]} for i in range(0, 40, 10)]
    validation = judged(linear(), batches, batch_loss=mean)
    assert math.isnan(validation.loss(torch.full_like(validation.params(), math.nan)))
    sample = validation.sample(20, torch.Generator().manual_seed(0))
    assert sample.num_examples == 20


def test_a_loss_that_could_not_be_tried_is_said(caplog):
    """The model takes eighty examples at a time, as a batch has, and 64 are tried."""

    class TakesEighty(nn.Linear):
        def forward(self, rows):
            return super().forward(rows) + torch.zeros(80, 1)

    model = build(TakesEighty, 5, 3)
    judged(model, ROWS.repeat(4, 1), LABELS.repeat(4), loss_fn=REFUSED[0], batch_size=80)
    (message,) = caplog.messages
    assert message.startswith("loss_fn is taken for a mean over the examples of a batch; whether")


class Logits(dict):
    """Outputs as models of the transformers library give them."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


class OfLogits(nn.Linear):
    def forward(self, rows: Tensor) -> Logits:
        return Logits(logits=super().forward(rows))


def test_a_loss_of_named_outputs_is_tried_as_any_other(caplog):
    def of_logits(outputs, labels, reduction="mean"):
        return functional.cross_entropy(outputs.logits, labels, reduction=reduction)

    model = build(OfLogits, 5, CLASSES)
    judged(model, ROWS, LABELS, loss_fn=of_logits, batch_size=10)
    assert caplog.messages == []
    with pytest.raises(ConfigError, match=r"^loss_fn gives .* results would depend on the batch"):
        judged(model, ROWS, LABELS, loss_fn=partial(of_logits, reduction="sum"), batch_size=10)


@pytest.mark.parametrize("batch_size", [7, 40])
def test_a_batch_loss_that_gives_the_sum_is_refused(batch_size):
    def summed(model, batch):
        rows, labels = batch
        return functional.cross_entropy(model(rows), labels, reduction="sum"), len(labels)

    words = "batch_loss gives .* It is their sum: allowed: .mean loss, what it divides by."
    with pytest.raises(ConfigError, match=words):
        judged(linear(), (ROWS, LABELS), batch_loss=summed, batch_size=batch_size)


def test_a_batch_loss_of_pairs_is_warned_of_and_a_mean_is_not(caplog):
    def mean(model, batch):
        rows, labels = batch
        return functional.cross_entropy(model(rows), labels, weight=WEIGHTS), WEIGHTS[labels].sum()

    def of_pairs(model, batch):
        return model(batch[0]).var(dim=0).mean(), len(batch[0])

    judged(linear(), (ROWS, LABELS), batch_loss=mean)
    assert caplog.messages == []
    judged(linear(), (ROWS, LABELS), batch_loss=of_pairs)
    (message,) = caplog.messages
    assert message.startswith("batch_loss gives ")
    assert "for 40 examples, but" in message
    assert "for 13 and 27 of them" in message
    assert message.endswith("(it returns 40, 13 and 27 as what they divide by)")


def test_a_batch_loss_that_returns_the_same_size_for_all_batches_is_refused():
    """The number of keys: seven examples and the last five would count alike."""

    def by_keys(model, batch):
        return functional.cross_entropy(model(batch["rows"]), batch["label"]), len(batch)

    batches = [{"rows": ROWS[i : i + 7], "label": LABELS[i : i + 7]} for i in range(0, 40, 7)]
    words = r"^batch_loss returns 2 for 7, 2 and 5 examples; allowed: what .* len\(batch\["
    with pytest.raises(ConfigError, match=words):
        judged(linear(), batches, batch_loss=by_keys)


def test_one_size_for_all_batches_divides_out_of_a_single_one(caplog):
    def as_one(model, batch):
        return functional.cross_entropy(model(batch["rows"]), batch["label"]), 1

    alone = judged(linear(), [{"rows": ROWS, "label": LABELS}], batch_loss=as_one)
    expected = judged(linear(), ROWS, LABELS)
    params = alone.params()
    assert alone.loss(params) == pytest.approx(expected.loss(params))
    (message,) = caplog.messages
    assert message.endswith("(it returns 1, 1 and 1 as what they divide by)")


def test_a_batch_loss_of_which_a_part_counts_nothing_is_a_mean(caplog):
    def counted(model, batch):
        rows, labels = batch
        return functional.cross_entropy(model(rows), labels), (labels != PAD).sum()

    # A third of them are the 13 of which one counts, or none.
    for labels in (SOME, torch.where(torch.arange(40) < 13, PAD, LABELS)):
        judged(linear(), (ROWS, labels), batch_loss=counted)
    assert caplog.messages == []


def normed(**options) -> nn.Module:
    layers = (nn.Linear(5, 6), nn.BatchNorm1d(6, **options), nn.ReLU(), nn.Linear(6, CLASSES))
    return build(nn.Sequential, *layers)


@pytest.mark.parametrize("loss_fn", [None, lambda o, t: functional.cross_entropy(o, t)])
def test_a_model_that_looks_at_the_others_of_a_batch_is_warned_of(loss_fn, caplog):
    """By batches of 10 its loss would be another than by batches of 40."""
    judged(normed(), ROWS, LABELS, loss_fn=loss_fn)
    assert caplog.messages == []
    judged(normed(track_running_stats=False), ROWS, LABELS, loss_fn=loss_fn)
    (message,) = caplog.messages
    assert message.startswith(
        "the model's output for an example depends on the others in its batch"
    )
    assert "for 13 and 27 of them" in message
    assert message.endswith("results would depend on the batch size")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_a_mean_is_taken_for_one(dtype, batch_size, size):
    def signed(outputs: Tensor, targets: Tensor) -> Tensor:
        """Terms of both signs: the mean is small beside them."""
        return (outputs[:, 0] - outputs[:, 1]).mean() + 0 * targets.sum()

    for count in (1, 2, 3, 40):
        rows, labels = (size * ROWS[:count]).to(dtype), LABELS[:count]
        judged(linear().to(dtype), rows, labels, loss_fn=signed, batch_size=batch_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_many_batches_are_not_summed_in_half_precision(dtype):
    count, single = 20_000, linear().to(dtype).float()
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(count, 5, generator=generator).to(dtype)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    expected = whole(single, functional.cross_entropy, rows.float(), labels)
    validation = judged(single.to(dtype), rows, labels)
    # Each batch's own mean and gradient are rounded: their mean is off by less than one of them.
    one_step = torch.finfo(dtype).eps
    agree(validation, *expected, one_step)
    params = validation.params()
    assert validation.loss_and_gradient(params).gradient.dtype == torch.float32
    worth = RoundGame(validation, a_round(params[None]), "loss")(torch.ones(1, 1).bool())
    assert worth.item() == pytest.approx(-expected[0], rel=one_step)


# -- in several threads


N = 230


@pytest.fixture
def shared(monkeypatch):
    """Share every pass, however small, by three threads."""
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    with torch_threads(3):
        yield


class Net(nn.Sequential):
    """A model that notes which threads it is called in."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, inputs):
        THREADS.add(threading.get_ident())
        sleep(0.0002)  # Let the others have their turn.
        return super().forward(inputs)


THREADS: set[int] = set()


def judge(**own) -> Validation:
    torch.manual_seed(0)
    inputs, targets = torch.randn(N, 5), torch.randint(0, CLASSES, (N,))
    found = Validation(Net(), inputs, targets, **{"device": "cpu", "batch_size": 10} | own)
    THREADS.clear()
    return found


def look(validation: Validation, seed: int) -> torch.Tensor:
    params = torch.randn(validation.num_params, generator=torch.Generator().manual_seed(seed))
    buffers = {"1.running_mean": torch.full((6,), float(seed))}
    loss, gradient = validation.loss_and_gradient(params, buffers)
    found = validation.evaluate(params, buffers)
    return torch.cat([torch.tensor([loss, found.loss, found.accuracy]), gradient])


@pytest.mark.usefixtures("shared")
def test_shared_passes_at_once_give_what_one_thread_gives():
    validation = judge()
    with torch_threads(1):
        expected = [look(validation, seed) for seed in range(4)]
    assert len(THREADS) == 1
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(lambda i: look(validation, i % 4), range(40)))
    assert len(THREADS) > 2
    for i, own in enumerate(found):
        torch.testing.assert_close(own, expected[i % 4], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("shared")
def test_passes_over_parts_share_the_threads_of_the_whole():
    validation = judge()
    part = validation.sample(20, torch.Generator().manual_seed(0))  # Two batches of 23.
    look(validation, 0)
    before = threading.active_count()
    look(part, 0)
    look(validation, 0)
    assert threading.active_count() == before


def mean_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1]), len(batch[1])


STATEFUL = {"batch_loss": mean_loss}, {"score": lambda outputs, _: outputs.mean()}


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("own", [*STATEFUL, {"batch_size": N}], ids=" ".join)
def test_what_may_keep_a_state_or_cannot_be_divided_stays_in_one_thread(own):
    validation = judge(**own)
    validation.evaluate(validation.params())
    assert len(THREADS) == 1


def game(validation: Validation, seed: int) -> torch.Tensor:
    """Return the worths of all coalitions of three clients whose models the seed draws."""
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(3, validation.num_params, generator=generator)
    masks = torch.tensor([[c >> i & 1 for i in range(3)] for c in range(1, 8)]).bool()
    return RoundGame(validation, a_round(updates), "loss")(masks)


@pytest.mark.usefixtures("shared")
def test_games_of_several_strategies_at_once_give_what_each_gives_alone():
    """Each begins by loading the model into judges that the others may be at work with."""
    validation = judge()
    expected = [game(validation, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(lambda i: game(validation, i % 4), range(24)))
    for i, worths in enumerate(found):
        torch.testing.assert_close(worths, expected[i % 4], rtol=1e-4, atol=1e-6)


def test_several_strategies_may_begin_with_their_models_at_once():
    """What was begun was once looked through while another strategy added to it."""
    taken = LossAndGradient(0.0, torch.zeros(1))
    gradients = SharedGradients(lambda params, buffers: taken, in_background=False)

    def begin_often(_: int) -> None:
        for _ in range(20_000):
            assert gradients.begin(torch.zeros(1), None).result() is taken

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as executor:
            list(executor.map(begin_often, range(4)))
    finally:
        sys.setswitchinterval(interval)
