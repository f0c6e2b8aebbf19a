"""Models, losses and data of other people: they work, or one sentence says why not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fedif_flower.errors import ConfigError, DivergedError, ValuationError
from fedif_flower.valuation import Validation
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.valuation.models import EXAMPLES, LABELS, ROWS, build, dict_loss, flat, whole

PAIRS = list(zip(ROWS, LABELS, strict=True))
ON_CPU = {"device": "cpu", "batch_size": 2}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_recurrent_model_has_its_gradient_without_dropout(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs CUDA")

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, sequences: Tensor) -> Tensor:
            return self.head(self.layers(sequences)[0][:, -1])

    model = build(Recurrent)
    sequences = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(3))
    validation = Validation(model, sequences, LABELS, device=device)
    found = validation.gradient(flat(model).to(device)).cpu()
    assert model.layers.dropout == 0.5  # the user's own model is left alone
    _, expected = whole(model.eval(), functional.cross_entropy, sequences, LABELS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_scripted_model_is_judged():
    layers = build(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    params = flat(layers)
    expected = Validation(layers, ROWS, LABELS, **ON_CPU)
    found = Validation(torch.jit.script(layers), ROWS, LABELS, **ON_CPU)
    for point in (params, 2 * params, -params):  # Its graph is compiled in the second call.
        torch.testing.assert_close(found.gradient(point), expected.gradient(point))
        assert found.evaluate(point) == pytest.approx(expected.evaluate(point), nan_ok=True)


class OfTwo(nn.Linear):
    """A model of two inputs."""

    def forward(self, first, second):
        return super().forward(first + second)


def test_inputs_that_came_as_one_are_told_how_to_come():
    words = r"the model takes 2 inputs: pass \(a, b, targets\) in the place of \(a, b\), targets$"
    with pytest.raises(ValuationError, match=words):
        Validation(OfTwo(3, 2), (ROWS, ROWS), LABELS, device="cpu")
    assert Validation(OfTwo(3, 2), (ROWS, ROWS, LABELS), device="cpu").num_examples == len(ROWS)


def broken(*_):
    raise RuntimeError("no such column")


class OfOneOrTwo(nn.Linear):
    """A model that takes two inputs as one, too."""

    def forward(self, first, second=None):
        if second is None:
            first, second = first
        return super().forward(first + second)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        # A batch of its own form is taken as it is.
        (OfTwo, {"batch_loss": broken}),
        (OfOneOrTwo, {"loss_fn": broken}),
    ],
)
def test_other_failures_than_of_several_inputs_are_told_alone(model, loss):
    with pytest.raises(ValuationError, match=r"RuntimeError: no such column$"):
        Validation(model(3, 2), [((ROWS, ROWS), LABELS)], device="cpu", **loss)


class Detached(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows).detach()


def every(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


LINEAR, GIVEN = nn.Linear(3, 2), (ROWS, LABELS)
MIXED = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2, dtype=torch.float64))
MEAN_SQUARE = {"loss_fn": functional.mse_loss}
OTHER_TYPE = "the data are float64, the model is float32: convert the data to float32$"
NAMED = {"img": ROWS, "label": LABELS}
OF_ANOTHER = {"batch_loss": lambda model, batch: dict_loss(LINEAR, batch)}
BOTH = {"batch_loss": dict_loss, "loss_fn": functional.cross_entropy}


@pytest.mark.parametrize(
    ("model", "data", "settings", "message"),
    [
        (LINEAR, (EXAMPLES,), {}, r"\{'img': .*expected \(inputs, targets\).*batch_loss"),
        (nn.Linear(4, 2), GIVEN, {}, r"float32 \[2, 3\].*RuntimeError: "),
        (LINEAR, (ROWS.double().numpy(), LABELS), {}, OTHER_TYPE),
        (LINEAR, ([GIVEN, (ROWS.double(), LABELS)],), {}, f"batch 2, .*{OTHER_TYPE}"),
        (LINEAR, GIVEN, {"loss_fn": every}, r"float32 \[2\]; expected a scalar"),
        (Detached(3, 2), GIVEN, {}, "does not depend on a trainable parameter"),
        (LINEAR, ([NAMED],), OF_ANOTHER, "of this model, which is a copy of yours: nothing to"),
        (nn.Linear(3, 2).requires_grad_(False), GIVEN, {}, "nothing to train"),
        (MIXED, GIVEN, {}, "float32 and float64; allowed: one floating-point"),
        (nn.Linear(3, 2, dtype=torch.complex64), GIVEN, {}, "complex64; allowed: one floating"),
        (LINEAR, (EXAMPLES,), {"batch_loss": lambda m, b: 1.0}, r"\(mean loss, size\)"),
        (LINEAR, (EXAMPLES,), BOTH, "one of them"),
        (LINEAR, GIVEN, {"score": lambda o, t: "good"}, "the score cannot be taken"),
        (LINEAR, GIVEN, {"score": lambda o, t: o}, "the score .*expected a number"),
        (LINEAR, ([1.0, 2.0], LABELS), {}, r"is list \(float, float\); allowed .*NumPy arrays, as"),
        (LINEAR, (pd.DataFrame(ROWS.numpy()), LABELS), {}, "is DataFrame; .*NumPy arrays, as to_"),
        (LINEAR, (TensorDataset(*GIVEN), LABELS), {}, "TensorDataset, which brings its own"),
        (LINEAR, (iter([]),), {}, "empty"),
        (LINEAR, (ROWS, LABELS[:3]), {}, "one number of examples"),
        (LINEAR, GIVEN, {"batch_size": -1}, "batch_size is -1"),
        (LINEAR, GIVEN, {"batch_size": 0}, "batch_size is 0"),
        (LINEAR, GIVEN, {"batch_size": 1.5}, "batch_size is 1.5; allowed: an integer >= 1"),
        # Not in the first batch.
        (
            LINEAR,
            (torch.cat([ROWS, ROWS]), torch.cat([LABELS, LABELS + 2])),
            {"batch_size": len(ROWS)},
            "batch 2.*IndexError",
        ),
        (LINEAR, (torch.cat([ROWS, ROWS / 0]), torch.cat([LABELS, LABELS])), {}, "gives NaN"),
        (LINEAR, (PAIRS,), {}, r"which is a single example.*with a batch_size"),
        # As many targets as outputs, but not as inputs.
        (LINEAR, ([(ROWS[0], torch.ones(2))],), MEAN_SQUARE, "single example: the model takes two"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_said_at_construction(model, data, settings, message):
    with pytest.raises(ValuationError, match=f"(?s){message}"):
        Validation(model, *data, **ON_CPU | settings)


class InThrees(nn.Linear):
    """Takes examples of three numbers one behind the other, ``[3 n]``."""

    def forward(self, numbers: Tensor) -> Tensor:
        return super().forward(numbers.view(-1, 3))


class StepsFirst(nn.Module):
    """Takes sequences ``[steps, n, 3]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(3, 2)

    def forward(self, sequences: Tensor) -> Tensor:
        return self.layers(sequences)[0][-1]


def flat_square(outputs, targets):
    return functional.mse_loss(outputs.flatten(), targets)


EACH = nn.Sequential(nn.Unflatten(-1, (-1, 1)), nn.Linear(1, 2))


@pytest.mark.parametrize(
    ("model", "batch", "loss_fn"),
    [
        (InThrees(3, 2), (ROWS.flatten(), LABELS), None),
        (StepsFirst(), (torch.stack([ROWS, ROWS]), LABELS), None),
        (nn.Sequential(nn.Flatten(0, 1), LINEAR), (ROWS[None], LABELS), None),
        (EACH, (ROWS[:, 0], LABELS), None),
        (EACH, (ROWS[:, 0], torch.ones(10)), flat_square),
    ],
    ids=["flat", "steps first", "tokens", "numbers", "two targets a number"],
)
def test_batches_may_be_laid_out_in_any_way(model, batch, loss_fn):
    validation = Validation(model, [batch], loss_fn=loss_fn, device="cpu")
    assert validation.num_examples == len(batch[1])


def test_a_measure_of_a_name_that_is_taken_is_refused():
    """It would have been left out: the loss and the accuracy are the validation's own."""
    for name in ("loss", "accuracy", "score"):
        with pytest.raises(ConfigError, match=f"measures = '{name}'; allowed: names other than"):
            Validation(LINEAR, *GIVEN, measures={name: lambda o, t: 0.0}, device="cpu")


def test_under_inference_mode_no_gradient_can_be_taken():
    with torch.inference_mode(), pytest.raises(ValuationError, match=r"^under torch.inference_"):
        Validation(nn.Linear(3, 2), *GIVEN, device="cpu")


def test_within_autocast_a_loss_is_that_of_the_parameters_that_are_asked_about():
    """Autocast keeps a copy of each parameter, and uses it after the parameter has changed."""
    model = build(nn.Linear, 3, 2)
    expected = Validation(model, *GIVEN, device="cpu")
    others = [expected.params(), torch.zeros(8), 3 * expected.params()]
    with torch.autocast("cpu", torch.bfloat16):
        validation = Validation(model, *GIVEN, device="cpu")
        for params in others:
            loss = expected.loss(params)
            found = validation.loss_and_gradient(params)
            assert found.loss == pytest.approx(loss, rel=0.03)
            assert validation.loss(params) == pytest.approx(loss, rel=0.03)


@pytest.mark.parametrize(
    "data",
    [
        DataLoader(PAIRS, batch_size=2),
        DataLoader(PAIRS, batch_size=2, shuffle=True, generator=torch.Generator()),
        TensorDataset(ROWS, LABELS),
    ],
)
def test_the_trial_leaves_no_trace(data):
    """A loader whose sampler draws a part of the data draws it as in any other program."""

    class Noisy(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(functional.dropout(rows, 0.5))  # in eval mode too

    model, before = nn.Sequential(nn.BatchNorm1d(3), Noisy(3, 2)), torch.get_rng_state()
    validation = Validation(model, data, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model[0].num_batches_tracked == 0
    assert torch.equal(validation.params(), flat(model))
    with pytest.raises(DivergedError, match="not finite"):
        validation.gradient(validation.params() + torch.inf)


def test_accuracy_is_refused_where_targets_are_no_classes():
    mean = functional.mse_loss
    validation = Validation(build(nn.Linear, 3, 2), ROWS, ROWS[:, :2], loss_fn=mean, device="cpu")
    with pytest.raises(ConfigError, match="utility = 'accuracy'; allowed: loss with this"):
        ShapleyValuation(validation)
    with pytest.raises(ConfigError, match=r"utility = 'score'; .*Validation\(score="):
        ShapleyValuation(validation, utility="score")
    ShapleyValuation(validation, utility="loss")


def test_who_has_a_score_is_not_told_how_to_get_one():
    mean = functional.mse_loss
    model = build(nn.Linear, 3, 2)
    scored = Validation(model, ROWS, ROWS[:, :2], loss_fn=mean, score=mean, device="cpu")
    with pytest.raises(ConfigError) as refused:
        ShapleyValuation(scored)
    words = "utility = 'accuracy'; allowed: loss or score with this validation set"
    assert str(refused.value) == words
    ShapleyValuation(scored, utility="score")


def dict_score(model, batch):
    return (model(batch["img"]).argmax(1) == batch["label"]).float().mean()


class Stream(IterableDataset):
    def __init__(self, examples) -> None:
        self.examples = examples

    def __iter__(self):
        return iter(self.examples)


BATCHES = [{"img": ROWS[:3], "label": LABELS[:3]}, {"img": ROWS[3:], "label": LABELS[3:]}]
OWN = {"batch_loss": dict_loss, "score": dict_score}
ARRAYS = ROWS.numpy().copy(), LABELS.numpy().copy()
for array in ARRAYS:
    array.flags.writeable = False


DICTS = [
    Stream(EXAMPLES),
    DataLoader(EXAMPLES, batch_size=2),
    DataLoader(Stream(BATCHES), batch_size=None),
    {"img": ROWS.numpy(), "label": LABELS.numpy()},
    iter(BATCHES),
]
PLAIN = [
    ARRAYS,
    (np.asfortranarray(ARRAYS[0]), ARRAYS[1].astype(">i8")[::-1][::-1]),
    ([(ARRAYS[0][:3], ARRAYS[1][:3]), (ARRAYS[0][3:], ARRAYS[1][3:])],),
]


@pytest.mark.parametrize("data", [*DICTS, *PLAIN])
@pytest.mark.filterwarnings("error")
def test_data_of_any_structure_are_as_good_as_tensors(data):
    model, is_plain = build(nn.Linear, 3, 2), isinstance(data, tuple)
    given, own = (data, {}) if is_plain else ((data,), OWN)
    validation = Validation(model, *given, **ON_CPU, **own)
    expected = Validation(model, ROWS, LABELS, device="cpu")
    params = flat(model)
    assert validation.num_examples == 5
    torch.testing.assert_close(validation.gradient(params), expected.gradient(params))
    found = validation.evaluate(params)
    assert found.loss == pytest.approx(expected.loss(params))
    right, undefined = (found.accuracy, found.score) if is_plain else (found.score, found.accuracy)
    assert right == pytest.approx(expected.accuracy(params))
    assert undefined != undefined  # NaN


def test_examples_that_fill_no_batch_are_left_out_with_a_count(caplog):
    model = build(nn.Linear, 3, 2)
    assert Validation(model, DataLoader(PAIRS, 2), device="cpu").num_examples == 5
    assert caplog.messages == []
    dropping = DataLoader(PAIRS, 2, drop_last=True)
    assert Validation(model, dropping, device="cpu").num_examples == 4
    (message,) = caplog.messages
    assert message.startswith("examples left out at the end of the held-out set: 1;")
    assert message.endswith("its DataLoader has drop_last=True")


def test_inputs_that_another_model_computed_are_data_like_others():
    """The trial goes through the data more than once; a graph can be gone through only once."""
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    rows = other(torch.randn(6, 3))
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    model = nn.Linear(2, 2)
    expected = Validation(model, rows.detach(), labels, device="cpu")
    batches = [(rows[:3], labels[:3]), (rows[3:], labels[3:])]
    for data in ((rows, labels), (TensorDataset(rows, labels),), (batches,)):
        validation = Validation(model, *data, device="cpu")
        gradients = [validation.gradient(flat(model)) for _ in range(2)]
        assert torch.equal(*gradients)
        assert torch.allclose(gradients[0], expected.gradient(flat(model)))
    assert other[0].weight.grad is None


def test_a_loss_may_take_the_slope_in_inputs_that_ask_for_it():
    """As a physics-informed loss does: here (f'(x) - 1)^2 for f(x) = w x, with slope 2 (w - 1)."""

    def loss(model, batch):
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(model(batch).sum(), batch, create_graph=True)
        return ((slopes - 1) ** 2).mean(), len(batch)

    places = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(3.0)
    validation = Validation(model, places, batch_loss=loss, device="cpu", batch_size=2)
    assert validation.gradient(torch.tensor([3.0])).tolist() == [4.0]


def test_sizes_of_the_user_s_own_weigh_the_batches():
    def per_token(model, batch):
        return model(batch[0]).mean(), int(batch[1])

    tokens = [(1.0, 3), (5.0, 1), (9.0, 0)]  # The last batch is all padding.
    batches = [(torch.tensor([[x]]), torch.tensor([size])) for x, size in tokens]
    model = build(nn.Linear, 1, 1)
    validation = Validation(model, iter(batches), batch_loss=per_token, device="cpu")
    assert validation.num_examples == 4
    assert validation.gradient(flat(model)).tolist() == [2.0, 1.0]  # (3 * 1 + 1 * 5) / 4


CPU = torch.device("cpu")


class Adapted(nn.Module):
    """A frozen layer below one that is trained."""

    def __init__(self, *, base_is_sent: bool) -> None:
        super().__init__()
        self.base = nn.Linear(3, 4).requires_grad_(requires_grad=False)
        self.adapter = nn.Linear(4, 2)
        if not base_is_sent:
            self.register_state_dict_post_hook(leave_out_base)

    def forward(self, inputs):
        return self.adapter(self.base(inputs).relu())


def leave_out_base(module, state, prefix, _) -> None:
    for name in ("base.weight", "base.bias"):
        del state[prefix + name]


@pytest.mark.parametrize("base_is_sent", [True, False])
def test_a_base_is_shared_only_if_nothing_can_be_loaded_into_it(base_is_sent):
    model = Adapted(base_is_sent=base_is_sent)
    copied = FlatModel(model, CPU)
    assert (copied.module.base.weight is model.base.weight) is not base_is_sent
    before = model.adapter.weight.clone()
    copied.load(torch.zeros(10), {"base.bias": torch.ones(4)} if base_is_sent else {})
    assert bool((copied.module.base.bias == 1).all()) is base_is_sent
    assert torch.equal(model.adapter.weight, before)
    assert not copied.module.adapter.weight.any()
    assert copied.parameter_names == ["adapter.weight", "adapter.bias"]


class Remembering(nn.Linear):
    """Keeps what it computed, as attention maps are kept to look at."""

    def forward(self, rows: Tensor) -> Tensor:
        self.last = super().forward(rows)
        self.steps = [rows, self.last]
        return self.last


def test_a_model_that_keeps_what_it_computed_is_copied():
    model = build(Remembering, 3, 2)
    kept = model(ROWS)
    validation = Validation(model, *GIVEN, **ON_CPU)
    params = validation.params()
    loss, gradient = whole(build(nn.Linear, 3, 2), functional.cross_entropy, *GIVEN)
    assert validation.loss(params) == pytest.approx(loss)
    torch.testing.assert_close(validation.gradient(params), gradient)
    assert model.last is model.steps[1] is kept
    assert kept.requires_grad


class Force(nn.Module):
    """The slope of an energy, which it takes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))

    def forward(self, places: Tensor) -> Tensor:
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.energy(places).sum(), places, create_graph=True)
        return -slope


def test_a_model_that_takes_a_gradient_by_itself_is_judged():
    model = build(Force)
    data = (ROWS, ROWS.flip(0))
    validation = Validation(model, *data, loss_fn=functional.mse_loss, **ON_CPU)
    params = validation.params()
    loss, gradient = whole(model, functional.mse_loss, *data)
    assert validation.loss(params) == pytest.approx(loss)
    torch.testing.assert_close(validation.gradient(params), gradient)
    with validation.judge.replica().model.evaluation_mode():
        assert not torch.is_inference_mode_enabled()


def test_a_loss_that_raises_where_a_model_answers_nan_is_nan_and_a_mistake_stays_one():
    """One client's finite weights can overflow in the mean; torch's BCELoss raises there."""

    def refusing(outputs: Tensor, targets: Tensor) -> Tensor:
        if not bool((outputs.abs() < 9).all()):
            raise ValueError("beyond 9")
        return (outputs - targets).abs().mean()

    judge = Validation(
        nn.Linear(1, 1, bias=False), torch.ones(2, 1), torch.ones(2, 1), loss_fn=refusing
    )
    assert judge.evaluate(torch.tensor([3.0])).loss == 2
    assert np.isnan(judge.evaluate(torch.tensor([torch.inf])).loss)
    with pytest.raises(ValueError, match="beyond 9"):
        judge.loss(torch.tensor([10.0]))


def test_a_gradient_is_taken_where_its_caller_takes_none():
    line = nn.Linear(1, 1, bias=False)
    nn.init.ones_(line.weight)
    inputs, targets = torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)
    judge = Validation(line, inputs, targets, loss_fn=functional.mse_loss, **ON_CPU)
    with torch.no_grad():
        # The loss is (w^2 + 4 w^2) / 2, and its gradient 5 w.
        assert judge.gradient(judge.params()).tolist() == [5.0]
        assert not torch.is_grad_enabled()
    classes = Validation(nn.Linear(1, 2), inputs, torch.tensor([0, 1]), noise=0.1, **ON_CPU)
    with torch.no_grad():
        (gradient,) = classes.noise_gradients([0.1], classes.params())
    assert torch.allclose(gradient, classes.gradient(classes.params()))
