"""Models, losses and loaders of other people: they work, or one sentence says why not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.valuation import Validation
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from tests.valuation.models import EXAMPLES, LABELS, ROWS, build, dict_loss, flat


def plain_gradient(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


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
    model.eval()
    expected = plain_gradient(model, functional.cross_entropy(model(sequences), LABELS))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_scripted_model_is_judged():
    layers = build(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    params = flat(layers)
    expected = Validation(layers, ROWS, LABELS, device="cpu", batch_size=2)
    found = Validation(torch.jit.script(layers), ROWS, LABELS, device="cpu", batch_size=2)
    for point in (params, 2 * params, -params):  # Its graph is compiled in the second call.
        torch.testing.assert_close(found.gradient(point), expected.gradient(point))
        assert found.evaluate(point) == pytest.approx(expected.evaluate(point), nan_ok=True)


class Detached(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows).detach()


def frozen() -> nn.Module:
    return nn.Linear(3, 2).requires_grad_(False)


def mixed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2, dtype=torch.float64))


def every(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("model", "data", "settings", "message"),
    [
        (nn.Linear(3, 2), (EXAMPLES,), {}, r"\{'img': .*expected \(inputs, targets\).*batch_loss"),
        (nn.Linear(4, 2), (ROWS, LABELS), {}, r"float32 \[5, 3\].*RuntimeError: "),
        (nn.Linear(3, 2), (ROWS, LABELS), {"loss_fn": every}, r"float32 \[5\]; expected a scalar"),
        (Detached(3, 2), (ROWS, LABELS), {}, "does not depend on a trainable parameter"),
        (frozen(), (ROWS, LABELS), {}, "nothing to train"),
        (mixed(), (ROWS, LABELS), {}, "float32 and float64; allowed: one floating-point"),
        (
            nn.Linear(3, 2, dtype=torch.complex64),
            (ROWS, LABELS),
            {},
            "complex64; allowed: one floating",
        ),
        (nn.Linear(3, 2), (EXAMPLES,), {"batch_loss": lambda m, b: 1.0}, r"\(mean loss, size\)"),
        (
            nn.Linear(3, 2),
            (EXAMPLES,),
            {"batch_loss": dict_loss, "loss_fn": functional.cross_entropy},
            "one of them",
        ),
        (
            nn.Linear(3, 2),
            (ROWS, LABELS),
            {"score": lambda o, t: "good"},
            "the score cannot be taken",
        ),
        (
            nn.Linear(3, 2),
            (ROWS, LABELS),
            {"score": lambda o, t: o},
            "the score .*expected a number",
        ),
        (nn.Linear(3, 2), ([1.0, 2.0], LABELS), {}, "inputs is list .*own targets; allowed beside"),
        (nn.Linear(3, 2), (iter([]),), {}, "empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_said_at_construction(model, data, settings, message):
    with pytest.raises(ValuationError, match=f"(?s){message}"):
        Validation(model, *data, device="cpu", **settings)


def test_the_trial_leaves_no_trace():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.fc = nn.Linear(3, 2)

        def forward(self, rows: Tensor) -> Tensor:
            return self.fc(functional.dropout(self.norm(rows), 0.5))  # in eval mode too

    model = Noisy()
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    loader = DataLoader([*zip(ROWS, LABELS, strict=True)], batch_size=2, shuffle=True)
    validation = Validation(model, loader, device="cpu")
    assert torch.equal(torch.rand(4), expected)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(validation.params(), flat(model))


def test_accuracy_is_refused_where_targets_are_no_classes():
    mean = functional.mse_loss
    validation = Validation(build(nn.Linear, 3, 2), ROWS, ROWS[:, :2], loss_fn=mean, device="cpu")
    with pytest.raises(ConfigError, match="utility = 'accuracy'; allowed: loss with this"):
        ShapleyValuation(validation)
    with pytest.raises(ConfigError, match=r"utility = 'score'; .*Validation\(score="):
        ShapleyValuation(validation, utility="score")
    ShapleyValuation(validation, utility="loss")
