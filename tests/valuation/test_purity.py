"""Equal parameters have one loss, whatever a model draws; the process's draws are left alone."""

from __future__ import annotations

import random
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower import FedIF
from fedif_flower.aggregators.deep_sight import DeepSight
from fedif_flower.devices import torch_threads
from fedif_flower.errors import ValuationError
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.tasks.modules import random_state
from fedif_flower.valuation import Validation
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_flower.valuation.shapley.valuation import RoundGame
from fedif_flower.valuation.subsets import missing_classes
from tests.rounds import a_round
from tests.valuation.models import build

CPU = torch.device("cpu")
COUNT, CLASSES = 24, 3
GENERATOR = torch.Generator().manual_seed(1)
ROWS = torch.randn(COUNT, 4, generator=GENERATOR)
LABELS = torch.randint(CLASSES, (COUNT,), generator=GENERATOR)
judged = partial(Validation, device="cpu", batch_size=5)


class Noisy(nn.Linear):
    """Adds noise to what it answers, in eval mode too."""

    def noise(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape)

    def forward(self, rows: Tensor) -> Tensor:
        outputs = super().forward(rows)
        return outputs + self.noise(outputs.shape).to(outputs)


class OfNumpy(Noisy):
    def noise(self, shape: torch.Size) -> Tensor:
        return torch.from_numpy(np.random.standard_normal(tuple(shape)))  # noqa: NPY002


class OfPython(Noisy):
    def noise(self, shape: torch.Size) -> Tensor:
        return torch.full(shape, random.random()) * torch.arange(shape[-1])


class Dropping(nn.Sequential):
    """Monte Carlo dropout."""

    def __init__(self, *_) -> None:
        super().__init__(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, CLASSES))

    def train(self, mode: bool = True) -> Dropping:
        super().train(mode)
        self[1].train(True)
        return self


KINDS = [Noisy, OfNumpy, OfPython, Dropping]


def model_of(kind) -> nn.Module:
    return build(kind, 4, CLASSES)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_parameters_have_one_loss_and_the_process_draws_on(kind):
    validation = judged(model_of(kind), ROWS, LABELS, score=lambda o, t: float(o.std()))
    params = validation.params()
    loss = validation.loss(params)
    for _ in range(2):
        assert validation.evaluate(params) == validation.evaluate(params)
        assert validation.evaluate(params).loss == loss
        found = validation.loss_and_gradient(params)
        assert found.loss == pytest.approx(loss, rel=1e-6)
        assert torch.equal(found.gradient, validation.gradient(params))
    torch.rand(3)  # Whatever the process draws meanwhile.
    np.random.random(3)  # noqa: NPY002
    random.random()
    other = judged(model_of(kind), ROWS, LABELS)
    assert other.loss(params) == loss
    assert validation.loss(2 * params) != loss


@pytest.mark.parametrize("kind", KINDS)
def test_no_pass_moves_the_random_state_of_the_process(kind):
    model, before = model_of(kind), random_state(CPU)
    validation = judged(model, ROWS, LABELS, score=lambda o, t: float(o.std()))
    params = validation.params()
    validation.evaluate(params)
    validation.gradient(params)
    validation.gradients.begin(params, {}).result()
    validation.sample(9, torch.Generator().manual_seed(0)).loss(params)
    missing_classes(validation)
    RoundGame(validation, a_round(params[None]), "loss")(all_coalitions(1))
    assert random_state(CPU) == before


@pytest.mark.parametrize("kind", KINDS)
def test_draws_do_not_depend_on_the_number_of_threads(kind, monkeypatch):
    monkeypatch.setattr("fedif_flower.valuation.parallel._WORTH_SHARING", 0)
    validation = judged(model_of(kind), ROWS, LABELS)
    params = validation.params()
    updates = a_round(torch.stack([0.1 * params, -params, 0.1 * params]))
    found = []
    for threads in (1, 3):
        with torch_threads(threads):
            worths = RoundGame(validation, updates, "loss")(all_coalitions(3))
            loss, gradient = validation.loss_and_gradient(params)
            found.append(torch.cat([worths, torch.tensor([loss]), gradient]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


def test_coalitions_of_equal_members_are_worth_the_same():
    validation = judged(model_of(Noisy), ROWS, LABELS)
    updates = a_round(torch.stack([validation.params()] * 3))
    worths = RoundGame(validation, updates, "loss")(all_coalitions(3)[1:])
    assert worths.tolist() == pytest.approx([float(worths[0])] * 7, rel=1e-5)
    assert float(worths[0]) == pytest.approx(-validation.loss(validation.params()), rel=1e-6)


def test_each_batch_has_draws_of_its_own():
    """The same noise in each would not be noise."""
    rows, labels = ROWS[:1].repeat(8, 1), LABELS[:1].repeat(8)
    answers = []

    def score(outputs: Tensor, targets: Tensor) -> Tensor:
        answers.append(outputs)
        return outputs.mean()

    validation = judged(model_of(Noisy), rows, labels, score=score, batch_size=2)
    validation.evaluate(validation.params())
    assert len({tuple(row.tolist()) for row in answers[-1]}) == 8


def test_two_equal_runs_of_a_random_model_end_at_the_same_bits():
    """Clients train as in any app, with draws of the process, and the server looks on meanwhile."""

    def train(message, context):
        model = model_of(Dropping)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        number = int(context.node_config["partition-id"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(model(ROWS[number::4]), LABELS[number::4]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": 6})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    def run() -> list[Tensor]:
        start = model_of(Dropping)
        validation = judged(start, ROWS, LABELS)
        strategy = FedIF(validation, fraction_evaluate=0.0, setup=Setup(device="cpu"))
        torch.manual_seed(7)
        found = strategy.start(LocalGrid(train, 4), model_arrays(start), num_rounds=4).arrays
        return list(found.to_torch_state_dict().values())

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [OfNumpy, Dropping])
@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.from_numpy(np.random.standard_normal((4, 4))).float(),  # noqa: NPY002
        lambda: torch.randn(4, 4),
        lambda: torch.tensor([[random.random() for _ in range(4)] for _ in range(4)]),
    ],
)
def test_two_sets_that_are_drawn_are_not_one(kind, draw):
    """Data are read with the process's draws, which go on from batch to batch and set to set."""

    def drawn():
        for _ in range(2):
            yield draw(), LABELS[:4]

    model = model_of(kind)  # Which begins with a seed.
    one, other = (judged(model, drawn()) for _ in range(2))
    rows = [batch.content[0] for batch in (*one.batches, *other.batches)]
    assert not any(torch.equal(*pair) for pair in combinations(rows, 2))


# -- what remembers is refused


class Counting(nn.Linear):
    """Changes a buffer with each pass."""

    def __init__(self) -> None:
        super().__init__(4, CLASSES)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(rows) * self.passes


class Observing(nn.Linear):
    """Keeps the largest value that it has seen, which the same batch changes only once."""

    def __init__(self, *, is_sent: bool = True) -> None:
        super().__init__(4, CLASSES)
        self.register_buffer("largest", torch.zeros(()), persistent=is_sent)

    def forward(self, rows: Tensor) -> Tensor:
        self.largest = torch.maximum(self.largest, rows.abs().max())
        return super().forward(rows)


class Remembering(nn.Linear):
    """Counts its passes in an attribute that no buffer shows."""

    passes = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(rows) * self.passes


class DrawingElsewhere(Noisy):
    """Draws from a generator of its own."""

    generator = torch.Generator().manual_seed(0)

    def noise(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.generator)


REFUSED = {
    "counting": (Counting, "the model changes 'passes' in eval mode"),
    "observing": (Observing, "the model changes 'largest' in eval mode"),
    "remembering": (lambda: Remembering(4, CLASSES), "and then .* remember nothing"),
    "elsewhere": (lambda: DrawingElsewhere(4, CLASSES), "and then .* from others it is not"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_remembers_in_eval_mode_is_refused(name):
    constructor, words = REFUSED[name]
    with pytest.raises(ValuationError, match=words):
        judged(build(constructor), ROWS, LABELS)


def test_a_loss_that_remembers_is_refused():
    class Growing:
        calls = 0

        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.calls += 1
            return self.calls * functional.cross_entropy(outputs, targets)

    with pytest.raises(ValuationError, match=r"and then .* remember nothing"):
        judged(build(nn.Linear, 4, CLASSES), ROWS, LABELS, loss_fn=Growing())


def test_a_table_that_is_filled_once_and_not_sent_is_no_memory():
    judged(build(partial(Observing, is_sent=False)), ROWS, LABELS)


def test_batch_norm_in_eval_mode_changes_nothing():
    layers = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, CLASSES))  # noqa: E731
    judged(build(layers), ROWS, LABELS)


def test_only_a_model_that_draws_is_kept_in_one_thread():
    assert not judged(build(nn.Linear, 4, CLASSES), ROWS, LABELS).judge.is_random
    assert judged(model_of(Noisy), ROWS, LABELS).judge.is_random


def test_deep_sight_sees_equal_clients_alike_and_leaves_the_process_alone():
    model = model_of(Noisy)
    rule = DeepSight(model, ROWS, samples=8, draws=1)
    before = random_state(CPU)
    ratios = rule._ratios(a_round(torch.stack([torch.ones(15)] * 2)))
    assert torch.equal(ratios[:, 0], ratios[:, 1])
    assert random_state(CPU) == before
