"""Scores of a user's own are those of all examples, however these are cut into batches."""

from __future__ import annotations

from collections import UserDict
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.devices import torch_threads
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.batches import read_batches
from fedif_flower.valuation import Validation
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.rounds import a_round

MSE = functional.mse_loss
judged = partial(Validation, device="cpu")


def as_given(size: int) -> nn.Module:
    """A model that answers with what it is given ``[n, size]``."""
    model = nn.Linear(size, size, bias=False)
    nn.init.eye_(model.weight)
    return model


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def auc(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of pairs of a positive and a negative example that are in the right order."""
    positive, negative = outputs[targets == 1], outputs[targets == 0]
    return (positive[:, None] > negative).double().mean()


def r_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1 - (targets - outputs).square().sum() / (targets - targets.mean()).square().sum()


def root_of_mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return MSE(outputs, targets).sqrt()


def macro_f1(outputs: Tensor, labels: Tensor) -> float:
    found, answers = [], outputs.argmax(dim=1)
    for label in (0, 1):
        both = ((answers == label) & (labels == label)).sum()
        found.append(2 * both / ((answers == label).sum() + (labels == label).sum()).clamp_min(1))
    return float(sum(found) / 2)


# Outputs, targets, and the score of them all. By batches of two in this order AUC would be 1.0,
# R² minus infinity, the root (sqrt(1/2) + sqrt(5/2)) / 2, F1 (1/3 + 1/2) / 2.
BY_HAND = {
    "auc": (auc, column(1, 2, 3, 4), column(0, 1, 0, 1), 3 / 4),
    "r squared": (r_squared, column(1, 2, 3, 4), column(1, 1, 5, 5), 1 - 6 / 16),
    "root": (root_of_mean_square, column(1, 2, 3, 4), column(1, 1, 5, 5), 1.5**0.5),
    "f1": (
        macro_f1,
        torch.tensor([[1.0, 0], [0, 1], [0, 1], [0, 1]]),
        torch.tensor([0, 0, 1, 1]),
        (2 / 3 + 4 / 5) / 2,
    ),
}


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", BY_HAND)
def test_a_score_is_that_of_all_examples(name, batch_size, order):
    score, outputs, targets, expected = BY_HAND[name]
    loss_fn = None if name == "f1" else MSE
    model = as_given(outputs.shape[1])
    validation = judged(
        *(model, outputs[order], targets[order]),
        loss_fn=loss_fn,
        score=score,
        measures={name: score},
        batch_size=batch_size,
    )
    params = validation.params()
    assert validation.evaluate(params).score == pytest.approx(expected)
    assert validation.measure(params)[name] == pytest.approx(expected)
    whole = MSE if loss_fn else functional.cross_entropy
    assert validation.measure(params)["loss"] == pytest.approx(float(whole(outputs, targets)))


@given(st.integers(2, 30), st.integers(1, 30), st.integers(0, 2**31))
def test_batches_and_order_do_not_change_an_auc(count, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 1, generator=generator)
    targets = (torch.rand(count, 1, generator=generator) < 0.5).float()
    targets[0], targets[1] = 0.0, 1.0  # One of each.
    order = torch.randperm(count, generator=generator)
    validation = judged(
        *(as_given(1), inputs[order], targets[order]),
        loss_fn=MSE,
        score=auc,
        batch_size=batch_size,
    )
    assert validation.evaluate(validation.params()).score == float(auc(inputs, targets))


@pytest.mark.parametrize("threads", [1, 3])
def test_members_are_valued_by_the_score_of_all_examples(threads, monkeypatch):
    """Of two weights the first alone tells positives from negatives; batches have one kind each."""
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    inputs = torch.tensor([[1.0, 0], [2, 0], [3, 0], [4, 0]])
    targets = column(0, 0, 1, 1)
    validation = judged(model, inputs, targets, loss_fn=MSE, score=auc, batch_size=2)
    updates = a_round(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    valuation = ShapleyValuation(validation, estimator="exact", utility="score")
    with torch_threads(threads):
        values = valuation.score(updates).values
    assert values.tolist() == pytest.approx([1.0, 0.0])  # u: nobody 0, first 1, second 0, both 1.


def test_a_part_of_the_data_has_the_score_of_its_own_examples():
    inputs = torch.arange(40.0)[:, None]
    targets = (inputs % 2 == 1).float()
    validation = judged(as_given(1), inputs, targets, loss_fn=MSE, score=auc, batch_size=3)
    part = validation.sample(7, torch.Generator().manual_seed(0))
    own, wanted = (torch.cat([batch.content[i] for batch in part.batches]) for i in (0, 1))
    assert part.evaluate(validation.params()).score == float(auc(own, wanted))


def test_examples_whose_target_is_ignored_are_left_out():
    """Batches of nothing else are not looked at, so that others must not count them either."""
    inputs = torch.eye(2).repeat(4, 1)
    labels = torch.tensor([-100, -100, 0, 1, 0, -100, 1, 1])
    seen = lambda outputs, targets: float(len(targets))  # noqa: E731
    for size in (1, 2, 8):
        validation = judged(as_given(2), inputs, labels, score=seen, batch_size=size)
        assert validation.evaluate(validation.params()).score == 5.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_half_precision_a_score_sees_numbers_that_numpy_knows(dtype):
    def score(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs.numpy() - targets.numpy()).mean())

    inputs, targets = column(1, 2, 3, 4).to(dtype), column(0, 1, 0, 1).to(dtype)
    validation = judged(as_given(1).to(dtype), inputs, targets, loss_fn=MSE, score=score)
    assert validation.evaluate(validation.params()).score == 2.0


class Named(UserDict):
    """Outputs of a kind of its own, as a library's models give them."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


class Answers(nn.Linear):
    """A model that gives its outputs in a structure."""

    def __init__(self, kind) -> None:
        super().__init__(1, 1, bias=False)
        nn.init.ones_(self.weight)
        self.kind = kind

    def forward(self, inputs: Tensor):
        return self.kind(super().forward(inputs))


LOGITS = {
    "dict": (lambda outputs: {"logits": outputs}, lambda found: found["logits"]),
    "tuple": (lambda outputs: (outputs, None), lambda found: found[0]),
    "object": (lambda outputs: Named(logits=outputs), lambda found: found.logits),
}


@pytest.mark.parametrize("batch_size", [2, 4])
@pytest.mark.parametrize("kind", LOGITS)
def test_outputs_of_any_structure_are_put_together_or_a_mean_is_asked_for(kind, batch_size):
    build, logits = LOGITS[kind]
    data = BY_HAND["auc"][1:3]

    def validation(score) -> Validation:
        loss_fn = lambda found, targets: MSE(logits(found), targets)  # noqa: E731
        return judged(Answers(build), *data, loss_fn=loss_fn, score=score, batch_size=batch_size)

    def of_logits(found, targets):
        return auc(logits(found), targets)

    mean = validation(lambda found, targets: (logits(found) - targets).mean())
    assert mean.evaluate(mean.params()).score == 2.0
    if kind != "object" or batch_size == 4:
        found = validation(of_logits)
        assert found.evaluate(found.params()).score == 3 / 4


class Times(nn.Module):
    """One weight, for inputs of any shape."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


def test_what_cannot_be_put_together_has_to_be_a_mean():
    """Batches of sequences are as long as their longest one."""
    batches = [
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 2)),
        (torch.tensor([[1.0, 2.0, 3.0]]), torch.zeros(1, 3)),
    ]
    validation = judged(Times(), batches, loss_fn=MSE, score=lambda o, _: o.sum() / len(o))
    assert validation.evaluate(validation.params()).score == pytest.approx((10 + 6) / 3)
    with pytest.raises(ConfigError, match=r"the score gives .* outputs and targets of .* a mean"):
        judged(Times(), batches, loss_fn=MSE, score=lambda o, _: o.max())


# -- where outputs are too large, or the loss comes by batch_loss


@pytest.fixture
def no_room(monkeypatch):
    """As if the outputs of all examples did not fit."""
    monkeypatch.setattr("fedif_flower.valuation.trial_scores.MOST_BYTES", 0)


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("name", BY_HAND)
def test_a_score_of_outputs_too_large_has_to_be_a_mean(name):
    score, outputs, targets, _ = BY_HAND[name]
    data = (as_given(outputs.shape[1]), outputs, targets)
    own = {"score": score, "loss_fn": None if name == "f1" else MSE}
    with pytest.raises(ConfigError, match=r"the score gives .* examples take more than .* mean"):
        judged(*data, **own, batch_size=2)
    in_one = judged(*data, **own, batch_size=4)
    assert in_one.evaluate(in_one.params()).score == pytest.approx(BY_HAND[name][3])


@pytest.mark.usefixtures("no_room")
def test_a_mean_of_outputs_too_large_is_taken_batch_by_batch():
    error = functional.l1_loss
    data = BY_HAND["root"][1:3]
    for size in (1, 3, 4):
        validation = judged(as_given(1), *data, loss_fn=MSE, score=error, batch_size=size)
        assert validation.evaluate(validation.params()).score == pytest.approx(1.0)


def batch_loss(model, batch):
    return MSE(model(batch["x"]), batch["y"]), len(batch["y"])


def by_batch(score, batch_size: int, model: nn.Module | None = None) -> Validation:
    examples = {"x": column(1, 2, 3, 4), "y": column(0, 1, 0, 1)}
    batches = list(read_batches(examples, None, batch_size))
    return judged(
        model or as_given(1),
        batches,
        batch_loss=batch_loss,
        score=lambda model, batch: score(model(batch["x"]), batch["y"]),
    )


def test_beside_batch_loss_a_score_has_to_be_a_mean():
    for size in (1, 3, 4):
        found = by_batch(functional.l1_loss, size)
        assert found.evaluate(found.params()).score == pytest.approx(2.0)
    whole = by_batch(auc, 4)
    assert whole.evaluate(whole.params()).score == 3 / 4
    words = r"the score gives .*loss comes by batch_loss: .* a mean .* in one batch"
    for size in (1, 2, 3):
        with pytest.raises(ConfigError, match=words):
            by_batch(auc, size)


def recall(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) & (targets > 0)).sum() / targets.sum().clamp_min(1)


def test_what_looks_like_a_mean_at_a_model_of_zeros_is_tried_at_another():
    """It predicts nothing, so that the recall is 0 of each part and of the whole."""
    model = as_given(1)
    nn.init.zeros_(model.weight)
    with pytest.raises(ConfigError, match=r"the score gives .*loss comes by batch_loss"):
        by_batch(recall, 2, model)


def test_a_mean_that_cannot_be_tried_is_said(caplog):
    class OfTwo(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.view(2, 1))

    by_batch(functional.l1_loss, 2, OfTwo(1, 1, bias=False))
    assert "the score is a mean over 2 batches, since the loss comes by batch_loss" in caplog.text


# -- refused at construction


def test_a_score_that_is_no_number_is_refused():
    """With targets of one class there is no AUC, and R² divides by 0."""
    ones = torch.ones(4, 1)
    for score, words in ((auc, "is nan at"), (r_squared, "is -inf at")):
        with pytest.raises(ValuationError, match=f"the score of all validation examples {words}"):
            judged(as_given(1), column(1, 2, 3, 4), ones, loss_fn=MSE, score=score, batch_size=2)


def right(score):
    """Compare a score's outputs ``[n, 1]`` with targets ``[n]``, each with its own."""
    return lambda outputs, targets: score(outputs[:, 0], targets)


def to_targets(score):
    return lambda outputs, targets: score(outputs, targets[:, None])


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0.5) == (targets > 0.5)).float().mean()


def in_numpy(outputs: Tensor, targets: Tensor) -> float:
    return float(abs(outputs.numpy() - targets.numpy()).mean())


SCORES = [r_squared, root_of_mean_square, hits, in_numpy, lambda o, t: (o - t).abs().mean()]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("score", SCORES, ids=["r2", "root", "hits", "numpy", "mean"])
def test_a_score_that_compares_every_output_with_every_target_is_refused(score, is_constant):
    model = as_given(1)
    if is_constant:  # Then all pairs say at first what those that belong together do.
        nn.init.zeros_(model.weight)
    data = (model, column(*range(1, 9)), torch.tensor([0.0, 1, 0, 1, 1, 0, 0, 0]))
    fitting = {"loss_fn": lambda outputs, targets: MSE(outputs[:, 0], targets), "batch_size": 3}
    words = r"the score compares .* float32 \[8, 1\], targets float32 \[8\]; allowed: one shape"
    with pytest.raises(ConfigError, match=words):
        judged(*data, score=score, **fitting)
    for fixed in (right(score), to_targets(score)):
        found = judged(*data, score=fixed, **fitting)
        expected = float(score(model(data[1])[:, 0].detach(), data[2]))
        assert found.evaluate(found.params()).score == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_compares_every_output_with_every_target_is_refused():
    """Of outputs that are all alike its mean is right, and so it was taken for a mean."""
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    data = (column(*range(1, 9)), torch.tensor([0.0, 1, 0, 1, 1, 0, 0, 0]))
    with pytest.raises(ConfigError, match="loss_fn compares each output"):
        judged(model, *data, loss_fn=MSE)
    judged(model, *data, loss_fn=lambda outputs, targets: MSE(outputs[:, 0], targets))


@pytest.mark.parametrize(
    "score",
    [
        lambda outputs, targets: outputs.mean(),  # Targets do not matter.
        lambda outputs, targets: outputs.mean() - targets.mean(),
        lambda outputs, targets: (outputs.argmax(dim=1) == targets).float().mean(),
    ],
)
def test_a_score_that_is_blind_on_purpose_is_taken(score):
    data = (as_given(1), column(*range(1, 9)), torch.tensor([0.0, 1, 0, 1, 1, 0, 0, 0]))
    judged(*data, score=score, loss_fn=lambda outputs, targets: MSE(outputs[:, 0], targets))
