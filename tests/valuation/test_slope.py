"""A loss that cannot tell two models apart is refused, and a round that parts nobody is said."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower import FedIF
from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.loaded_task import load_task
from fedif_flower.strategies import InfluenceDescent, Setup
from fedif_flower.valuation import Validation
from tests.rounds import a_round
from tests.run.points import regression
from tests.valuation.models import build

ROWS = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
YES = (ROWS[:, 0] > 0).float()
CLASSES = YES.long()
judged = partial(Validation, device="cpu", batch_size=5)


class Squeezed(nn.Linear):
    """Answers with a number for each example, ``[n]``."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows)[:, 0]


CROSS_ENTROPIES = [None, functional.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)]
NAMED = r"cross-entropy, .* nn.BCEWithLogitsLoss\(\) .* nn.BCELoss\(\) .* nn.MSELoss\(\)"


@pytest.mark.parametrize("loss_fn", CROSS_ENTROPIES)
@pytest.mark.parametrize(
    ("kind", "targets", "shape"),
    [
        (nn.Linear, YES[:, None], r"\[5, 1\]"),
        (nn.Linear, CLASSES, r"\[5, 1\]"),  # torch itself would say that label 1 is out of bounds.
        (nn.Linear, torch.zeros(12, dtype=torch.int64), r"\[5, 1\]"),
        (Squeezed, YES, r"\[5\]"),  # To torch one example of five classes, and its loss no mean.
    ],
    ids=["column", "labels", "one label", "squeezed"],
)
def test_cross_entropy_of_one_output_is_refused(kind, targets, shape, loss_fn):
    with pytest.raises(ConfigError, match=f"the model gives float32 {shape}.*{NAMED}"):
        judged(build(kind, 3, 1), ROWS, targets, loss_fn=loss_fn)


LIKELIHOODS = [
    nn.NLLLoss(),
    functional.nll_loss,
    partial(functional.nll_loss, ignore_index=7),
]


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("loss_fn", LIKELIHOODS, ids=["module", "function", "partial"])
def test_a_negative_log_likelihood_of_no_log_probabilities_is_refused(loss_fn, noise):
    logits = nn.Linear(3, 2)
    probabilities = nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1))
    for model in (logits, probabilities):
        with pytest.raises(ConfigError, match=r"takes log-probabilities, which are <= 0; allowed"):
            judged(model, ROWS, CLASSES, loss_fn=loss_fn, noise=noise)
    log_probabilities = nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(dim=1))
    judged(log_probabilities, ROWS, CLASSES, loss_fn=loss_fn, noise=noise)


@pytest.mark.parametrize(("softmax", "warned"), [(nn.Softmax, 1), (nn.LogSoftmax, 0)])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_cross_entropy_of_probabilities_is_warned_of(softmax, warned, noise, caplog):
    judged(nn.Sequential(nn.Linear(3, 2), softmax(dim=1)), ROWS, CLASSES, noise=noise)
    judged(nn.Linear(3, 2), ROWS, CLASSES, noise=noise)
    assert caplog.text.count("leave out the model's own softmax") == warned


@pytest.mark.parametrize(
    "loss_fn",
    [nn.KLDivLoss(reduction="batchmean"), partial(functional.kl_div, reduction="batchmean")],
    ids=["module", "function"],
)
def test_a_divergence_of_no_log_probabilities_is_refused(loss_fn):
    chances = functional.one_hot(CLASSES, 2).float()
    with pytest.raises(ConfigError, match=r"takes log-probabilities, which are <= 0; allowed"):
        judged(nn.Linear(3, 2), ROWS, chances, loss_fn=loss_fn)
    judged(nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(dim=1)), ROWS, chances, loss_fn=loss_fn)


def test_a_class_of_losses_is_told_from_a_loss():
    with pytest.raises(ConfigError, match=r"loss_fn is the class MSELoss; allowed: MSELoss\(\)"):
        Validation(nn.Linear(1, 1), torch.rand(4, 1), torch.rand(4, 1), loss_fn=nn.MSELoss)


def test_what_the_refusal_names_works():
    column, layer = YES[:, None], build(nn.Linear, 3, 1)
    probability = nn.Sequential(layer, nn.Sigmoid())
    pairs = [
        (layer, nn.BCEWithLogitsLoss()),
        (probability, nn.BCELoss()),
        (layer, nn.MSELoss()),
    ]
    for model, loss_fn in pairs:
        validation = judged(model, ROWS, column, loss_fn=loss_fn)
        assert validation.gradient(validation.params()).norm() > 0
        assert validation.loss(validation.params()) == pytest.approx(
            float(loss_fn(model(ROWS), column).detach())
        )
    judged(build(nn.Linear, 3, 2), ROWS, CLASSES)


def test_a_task_with_one_output_and_no_loss_is_refused_before_anybody_trains(tmp_path):

    task = regression(loss=None, metrics=())
    config = RunConfig.from_run_config(RunConfig.defaults() | {"output-dir": str(tmp_path)})
    with pytest.raises(ConfigError, match=f"task 'line': validation_data: .*{NAMED}"):
        load_task(config, task)


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    """Count nothing: a mask that is wrong."""
    return (functional.mse_loss(outputs, targets, reduction="none") * (targets < -9)).mean()


def constant(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1 + 0 * outputs.mean() + 0 * targets.mean()


def of_detached(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.detach() - targets).square().mean() + 0 * outputs.sum()


def one_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy that is not recognised as torch's."""
    return functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize("loss_fn", [masked, constant, of_detached, one_class])
def test_a_loss_whose_gradient_is_zero_is_refused(loss_fn):
    with pytest.raises(ConfigError, match=r"is exactly 0 on all .*nn.BCEWithLogitsLoss\(\)"):
        judged(build(nn.Linear, 3, 1), ROWS, YES[:, None], loss_fn=loss_fn)


def test_so_is_one_by_batch_loss():
    def batch_loss(model, batch):
        return 0 * model(batch["x"]).mean(), len(batch["x"])

    examples = [{"x": row} for row in ROWS]
    batches = torch.utils.data.DataLoader(examples, batch_size=5)
    with pytest.raises(ConfigError, match=r"gradient of batch_loss.* is exactly 0"):
        judged(build(nn.Linear, 3, 1), batches, batch_loss=batch_loss)


def test_a_loss_whose_value_is_always_the_same_is_refused():
    """It has a gradient, but the bound by the loss would never see a step that harms."""

    def straight_through(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - outputs.detach()).mean() + 0 * targets.mean() + 2

    with pytest.raises(ConfigError, match="is the same at very different parameters"):
        judged(build(nn.Linear, 3, 1), ROWS, YES[:, None], loss_fn=straight_through)


def test_steps_of_a_loss_are_no_constant():
    """The share of errors moves in steps; its gradient is that of a surrogate."""

    def errors(outputs: Tensor, targets: Tensor) -> Tensor:
        wrong = ((outputs > 0).float() - targets).abs().mean()
        smooth = functional.binary_cross_entropy_with_logits(outputs, targets)
        return wrong + (smooth - smooth.detach())

    judged(build(nn.Linear, 3, 1), ROWS, YES[:, None], loss_fn=errors)


def test_what_begins_at_zeros_has_a_slope_in_some_parameter():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    labels = torch.tensor([0, 1, 1] * 4)  # Of equal classes the bias would have none either.
    validation = judged(model, ROWS, labels)
    gradient = validation.gradient(validation.params())
    assert gradient.count_nonzero() == 2  # The last bias.


def test_a_first_batch_without_a_slope_is_not_all_of_the_data():
    """The hinge loss of the first batch is 0, and of the second it is not."""

    def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 - outputs * targets).clamp_min(0).mean()

    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    inputs, ones = torch.tensor([[2.0], [3.0], [-2.0], [0.5]]), torch.ones(4, 1)
    judged(model, inputs, ones, loss_fn=hinge, batch_size=2)
    with pytest.raises(ConfigError, match="exactly 0"):
        judged(model, inputs[:2], ones[:2], loss_fn=hinge, batch_size=2)


def test_a_loss_without_a_graph_is_still_told_apart():
    with pytest.raises(ValuationError, match="does not depend on a trainable parameter"):
        judged(build(nn.Linear, 3, 1), ROWS, YES, loss_fn=lambda o, t: t.mean())


# -- a round that parts nobody


STRATEGIES = {"FedIF": FedIF, "InfluenceDescent": InfluenceDescent}


def flat() -> Validation:
    """Judge by (w - 1)^2 / 2 and a second parameter that no example looks at."""
    inputs, targets = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0]])
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    return judged(model, inputs, targets, loss_fn=lambda o, t: (o - t).square().mean() / 2)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([[0.0, 1.0], [0.0, -2.0]], "all 2 updates is exactly 0, since the gradient"),
        ([[0.0, 0.0], [0.0, 0.0]], "all 2 updates is exactly 0, since all updates are 0"),
        ([[0.0, 1.0], [1e-9, 1.0]], ""),
    ],
    ids=["across", "nothing", "one along"],
)
def test_a_round_whose_influences_are_all_zero_is_said(name, updates, words, caplog):
    setup = Setup(device="cpu")
    strategy = STRATEGIES[name](flat(), stages=(), fraction_evaluate=0.0, setup=setup)
    strategy.weigh(a_round(torch.tensor(updates)))
    assert ("influence of" in caplog.text) is bool(words)
    assert words in caplog.text
