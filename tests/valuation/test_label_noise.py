"""A loss that allows for wrong labels: by hand, and wherever the held-out loss is used."""

from __future__ import annotations

import logging
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedif_flower.attribution.path import path_attribution
from fedif_flower.errors import ConfigError
from fedif_flower.round import ModelVectors
from fedif_flower.valuation import Validation
from fedif_flower.valuation.class_mean import class_mean
from fedif_flower.valuation.descent import descend_round
from fedif_flower.valuation.label_noise import ForwardCorrected, corrected, transition_matrix
from fedif_flower.valuation.shapley.valuation import RoundGame
from tests.rounds import a_round
from tests.valuation.models import LABELS, ROWS, build

CROSS_ENTROPY = functional.cross_entropy
# Of three classes; the model is sure of class 0 by 1/2, 1/3, 1/6.
P = torch.tensor([[1 / 2, 1 / 3, 1 / 6]], dtype=torch.float64)
logits = st.lists(st.floats(-20, 20), min_size=6, max_size=6)


def test_hand_computed_loss_and_gradient():
    """a = 0.7, b = 0.15; q of class 2 is 0.15 + 0.55 / 6 = 0.241667."""
    found = P.log().requires_grad_()
    loss = ForwardCorrected(CROSS_ENTROPY, 0.3)(found, torch.tensor([2]))
    q = 0.15 + 0.55 / 6
    assert loss.item() == pytest.approx(-math.log(q))
    loss.backward()
    pull = 0.55 / 6 / q  # (a - b) p_y / q: 0.379 of what cross-entropy pulls.
    assert found.grad[0].tolist() == pytest.approx([pull / 2, pull / 3, pull * (1 / 6 - 1)])


def test_hand_computed_loss_of_chances_by_class():
    """Class 0 is called 1 in half of its examples: p T = [1/4, 1/4 + 1/3, 1/6]."""
    chances = torch.tensor([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    loss = ForwardCorrected(CROSS_ENTROPY, chances)
    expected = [0.3, 0.2 + 1 / 3, 1 / 6]
    found = [loss(P.log(), torch.tensor([label])).exp().reciprocal().item() for label in range(3)]
    assert found == pytest.approx(expected, rel=1e-6)


@given(logits, st.lists(st.integers(0, 2), min_size=2, max_size=2))
def test_without_noise_it_is_cross_entropy_to_the_bit(values, labels):
    outputs, targets = torch.tensor(values).view(2, 3), torch.tensor(labels)
    assert ForwardCorrected(CROSS_ENTROPY, 0.0)(outputs, targets) == CROSS_ENTROPY(outputs, targets)


@given(logits, st.floats(0.001, 0.66))
def test_symmetric_noise_is_its_matrix(values, noise):
    outputs = torch.tensor(values, dtype=torch.float64).view(2, 3)
    by_matrix = corrected(outputs, transition_matrix(noise, 3))
    assert torch.allclose(corrected(outputs, noise), by_matrix, rtol=1e-9, atol=1e-12)
    assert torch.allclose(by_matrix.exp().sum(dim=1), torch.ones(2, dtype=torch.float64))


@given(st.integers(2, 30), st.floats(0, 0.49))
def test_rows_of_the_matrix_sum_to_one(classes, noise):
    sums = transition_matrix(noise, classes).sum(dim=1)
    assert torch.allclose(sums, torch.ones_like(sums))


def test_a_sure_model_has_a_finite_loss_and_gradient():
    outputs = torch.tensor([[1000.0, -1000.0]], requires_grad=True)
    loss = ForwardCorrected(CROSS_ENTROPY, 0.1)(outputs, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(0.1))
    assert outputs.grad.abs().sum() == 0  # It counts for nothing.


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_chances_that_are_all_above_0_take_no_memory_for_pairs_of_classes(scale):
    """Values and gradients are those of the sums of logarithms, with 10,000 numbers at once."""
    generator = torch.Generator().manual_seed(0)
    outputs = scale * torch.randn(200, 50, generator=generator, dtype=torch.float64)
    chances = transition_matrix(0.3, 50)
    sizes: list[int] = []

    def pack(saved):
        sizes.append(saved.numel())
        return saved

    own = outputs.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        found = corrected(own, chances)
    found.diagonal().sum().backward()
    other = outputs.clone().requires_grad_()
    by_pair = (other.log_softmax(dim=1)[:, :, None] + chances.log()).logsumexp(dim=1)
    by_pair.diagonal().sum().backward()
    torch.testing.assert_close(found, by_pair)
    torch.testing.assert_close(own.grad, other.grad)
    assert max(sizes) <= 200 * 50


def test_half_precision_is_summed_in_float32():
    outputs = torch.randn(4, 3).bfloat16()
    assert corrected(outputs, 0.2).dtype == torch.float32


def test_weights_ignored_targets_and_images_stay_the_loss_s_own():
    weights = torch.tensor([1.0, 2.0, 3.0])
    loss_fn = partial(CROSS_ENTROPY, weight=weights, ignore_index=1)
    outputs, targets = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    found = ForwardCorrected(loss_fn, 0.25)(outputs, targets)
    q = (outputs.softmax(dim=1) * 0.625 + 0.125).gather(1, targets[:, None])[:, 0]
    counts = weights[targets] * (targets != 1)
    assert found.item() == pytest.approx(float(-(counts * q.log()).sum() / counts.sum()), rel=1e-5)
    mean = class_mean(ForwardCorrected(loss_fn, 0.25))
    # Not whole: Python 3.13 compares tensors by their values there, even if they are the same.
    assert (mean.ignored, mean.smoothing) == (1, 0.0)
    assert mean.class_weights is weights


def test_log_probabilities_are_corrected_as_logits_are():
    outputs, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    of_logits = ForwardCorrected(CROSS_ENTROPY, 0.2)(outputs, targets)
    of_logs = ForwardCorrected(functional.nll_loss, 0.2)(outputs.log_softmax(1), targets)
    assert of_logits.item() == pytest.approx(of_logs.item(), rel=1e-6)


def judge(noise=0.0, **more) -> Validation:
    model = build(nn.Linear, 3, 2)
    return Validation(model, ROWS, LABELS, noise=noise, device="cpu", **more)


def corrected_loss(params: torch.Tensor) -> torch.Tensor:
    """The loss of :func:`judge` at a vector, of the formula: noise 0.2 of two classes."""
    outputs = functional.linear(ROWS, params[:6].view(2, 3), params[6:])
    right = outputs.softmax(dim=1).gather(1, LABELS[:, None])[:, 0]
    return -(0.2 + 0.6 * right).log().mean()


def test_loss_gradient_and_figures_are_corrected_and_accuracy_is_not():
    plain, own = judge(), judge(0.2)
    params = (own.params() * 3).requires_grad_()
    expected = corrected_loss(params)
    (gradient,) = torch.autograd.grad(expected, params)
    point = params.detach()
    assert own.loss(point) == pytest.approx(expected.item(), rel=1e-6)
    assert own.evaluate(point).loss == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(own.gradient(point), gradient, atol=1e-6)
    assert own.accuracy(point) == plain.accuracy(point)
    assert own.loss(point) != plain.loss(point)


def test_descent_attribution_shapley_take_the_corrected_loss():
    own = judge(0.2)
    sent = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    begin = own.params()
    updates = a_round(sent, model=ModelVectors(begin, torch.zeros(0)))
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    found = descend_round(updates, own, weights, steps=2)
    start = begin + updates.client_updates.mean(dim=0)
    assert found.losses[0] == pytest.approx(corrected_loss(start).item(), rel=1e-5)

    parts = path_attribution(own.gradient, begin, updates.client_updates, weights)
    fall = corrected_loss(begin) - corrected_loss(start)
    assert float(parts.sum()) == pytest.approx(fall.item(), rel=0.02)

    masks = torch.tensor([[True, True, True]])
    (utility,) = RoundGame(own, updates, "loss")(masks)
    assert abs(utility) == pytest.approx(corrected_loss(start).item(), rel=1e-5)
    assert own.sample(2, torch.Generator().manual_seed(0)).noise == 0.2


def test_gradients_for_several_shares_of_a_sparse_embedding_are_those_of_each_alone():
    words = torch.tensor([[0, 1], [2, 3], [3, 3], [1, 4]])
    model = nn.Sequential(nn.EmbeddingBag(5, 2, sparse=True), nn.Linear(2, 2))
    validation = Validation(model, words, torch.tensor([0, 1, 1, 0]), noise=0.2, device="cpu")
    params = validation.params()
    gradients = validation.noise_gradients([0.2, 0.1], params)
    alone = [validation.gradient(params), validation.with_noise(0.1).gradient(params)]
    torch.testing.assert_close(gradients, alone)


def test_with_noise_shares_the_data_and_leaves_the_first_alone():
    plain = judge()
    own = plain.with_noise(0.2)
    assert (plain.noise, own.noise) == (0.0, 0.2)
    assert own.batches[0].content[0] is plain.batches[0].content[0]
    assert own.loss(own.params()) == judge(0.2).loss(own.params())
    assert plain.with_noise(0.0) is plain
    assert own.with_noise(0.0).loss(own.params()) == plain.loss(own.params())


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (0.5, "noise = 0.5; allowed: >= 0 and < 0.5"),
        (-0.1, "noise = -0.1; allowed: a number >= 0"),
        (torch.eye(3), "noise = \\[3, 3\\]; allowed: chances of the model's classes, \\[2, 2\\]"),
        (torch.ones(2, 2), "sums of 1"),
        (torch.full((2, 2), 0.5), "a diagonal with the largest chance"),
    ],
)
def test_a_share_out_of_range_is_refused(noise, words):
    with pytest.raises(ConfigError, match=words):
        judge(noise)
    with pytest.raises(ConfigError, match=words):
        judge().with_noise(noise)


def test_a_loss_that_is_no_cross_entropy_says_that_it_is_not_corrected(caplog):
    with caplog.at_level(logging.WARNING):
        own = Validation(
            nn.Linear(3, 1), ROWS, ROWS[:, :1], loss_fn=functional.mse_loss, noise=0.2, device="cpu"
        )
    assert own.noise == 0.0
    assert "not corrected for wrong held-out labels" in caplog.text


def test_a_loss_that_allows_for_wrong_labels_by_itself_stays_so():
    """It was unwrapped where no noise was named: the loss was plain cross-entropy."""
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.eye_(model.weight)
    inputs, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    own = Validation(
        model,
        inputs,
        labels,
        loss_fn=ForwardCorrected(functional.cross_entropy, 0.25),
        device="cpu",
    )
    right = 1 / (1 + math.e)  # Of class 1: 1/4 + (3/4 - 1/4) times that is the chance of its label.
    assert own.loss(own.params()) == pytest.approx(-math.log(0.25 + 0.5 * right))
    assert own.noise == 0.25
