"""A mean over a validation set is the mean over its batches, whatever the loss divides by."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.valuation import Validation
from fedif_flower.valuation.objective import BatchSize, ClassMean, class_mean
from fedif_flower.valuation.parts import missing_classes
from tests.tolerance import rounding
from tests.valuation.models import flat

CLASSES, PAD = 3, -100
WEIGHTS = torch.tensor([1.0, 4.0, 0.25])
GENERATOR = torch.Generator().manual_seed(1)
ROWS = torch.randn(40, 5, generator=GENERATOR)
LABELS = torch.randint(CLASSES, (40,), generator=GENERATOR).sort().values  # As folders have them.
SOME = torch.where(torch.arange(40) < 12, PAD, LABELS)  # The first twelve are ignored.


class LogSoftmax(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows).log_softmax(1)


def model(kind: type[nn.Module] = nn.Linear, classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(0)
    return kind(5, classes)


def whole(module: nn.Module, loss_fn, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    """Return loss and gradient on all of the data at once."""
    loss = loss_fn(module(inputs), targets)
    found = torch.autograd.grad(loss, list(module.parameters()))
    return loss.item(), torch.cat([gradient.flatten() for gradient in found])


def same(validation: Validation, loss: float, gradient: Tensor, module: nn.Module) -> None:
    params, tolerance = flat(module), rounding(torch.float32)
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
    module = model(LogSoftmax)
    ignored = class_mean(loss_fn).ignored
    targets = LABELS.masked_fill(SOME == PAD, ignored) if are_some_ignored else LABELS
    validation = Validation(
        module, ROWS, targets, loss_fn=loss_fn, device="cpu", batch_size=batch_size
    )
    same(validation, *whole(module, loss_fn, ROWS, targets), module)


@pytest.mark.parametrize("loss_fn", [functional.cross_entropy, LOSSES[0]], ids=["plain", "weights"])
def test_a_mean_over_tokens_is_over_those_that_are_not_ignored(loss_fn):
    class Tokens(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:  # [n, length, features] -> [n, classes, length]
            return super().forward(rows).transpose(1, 2)

    inputs = torch.randn(9, 6, 5, generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor([1, 6, 2, 3, 0, 6, 5, 1, 4])
    targets = torch.arange(54).view(9, 6) % CLASSES
    targets[torch.arange(6) >= lengths[:, None]] = PAD
    module = model(Tokens)
    validation = Validation(module, inputs, targets, loss_fn=loss_fn, device="cpu", batch_size=2)
    same(validation, *whole(module, loss_fn, inputs, targets), module)
    assert validation.num_examples == 9


def test_sizes_by_hand():
    mean = ClassMean(PAD, WEIGHTS)
    assert mean.size(torch.tensor([0, 1, PAD, 1])) == BatchSize(3, 9.0)
    assert mean.size(torch.tensor([[0, PAD], [PAD, PAD]])) == BatchSize(2, 1.0)
    assert mean.size(torch.tensor([PAD])) == BatchSize(0, 0)
    assert ClassMean(PAD).size(torch.tensor([0, 1, PAD, 1])) == BatchSize(3, 3)
    assert ClassMean(PAD, WEIGHTS).size(torch.zeros(4, CLASSES)) == BatchSize(4, 4)
    assert ClassMean(PAD).size(torch.zeros(4, CLASSES, 5)) == BatchSize(4, 20)
    with pytest.raises(ValuationError, match="targets are 1 to 3; allowed with 3 class weights"):
        mean.size(torch.tensor([1, 3]))


class Own(nn.CrossEntropyLoss):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().forward(outputs, targets).square()


@pytest.mark.parametrize("sum_of", [Own(), partial(functional.cross_entropy, size_average=False)])
def test_what_takes_another_mean_is_not_taken_for_a_known_one(sum_of):
    assert class_mean(sum_of) is None


def test_a_batch_of_ignored_targets_says_nothing():
    module = model()
    validation = Validation(module, ROWS, SOME, device="cpu", batch_size=4)
    kept = SOME != PAD
    same(validation, *whole(module, functional.cross_entropy, ROWS[kept], SOME[kept]), module)
    right = (module(ROWS[kept]).argmax(1) == SOME[kept]).double().mean().item()
    assert validation.accuracy(flat(module)) == right
    assert validation.num_examples == 28
    assert missing_classes(validation) == sorted({0, 1, 2} - set(SOME[kept].tolist()))


def test_where_every_target_is_ignored_there_is_nothing_to_judge_by():
    with pytest.raises(ValuationError, match="counts none of its targets"):
        Validation(model(), ROWS, torch.full((40,), PAD), device="cpu")


REFUSED = [
    lambda o, t: functional.cross_entropy(o, t, weight=WEIGHTS),
    lambda o, t: functional.cross_entropy(o, t, ignore_index=1),
    nn.CrossEntropyLoss(reduction="sum"),
    Own(),
]


@pytest.mark.parametrize("batch_size", [1, 7, 100])
@pytest.mark.parametrize("loss_fn", REFUSED, ids=["weights", "ignored", "sum", "own"])
def test_a_loss_that_is_no_mean_is_refused_at_construction(loss_fn, batch_size):
    with pytest.raises(ConfigError, match=r"loss_fn gives .* batch_loss\(model, batch\)"):
        Validation(model(), ROWS, LABELS, loss_fn=loss_fn, device="cpu", batch_size=batch_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_a_mean_is_taken_for_one(dtype, batch_size, size):
    def signed(outputs: Tensor, targets: Tensor) -> Tensor:
        """Terms of both signs: the mean is small beside them."""
        return (outputs[:, 0] - outputs[:, 1]).mean() + 0 * targets.sum()

    own = {"loss_fn": signed, "device": "cpu", "batch_size": batch_size}
    for count in (1, 2, 3, 40):
        rows = (size * ROWS[:count]).to(dtype)
        Validation(model().to(dtype), rows, LABELS[:count], **own)
