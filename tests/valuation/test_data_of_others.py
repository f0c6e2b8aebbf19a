"""Data as other people have them: batches of any structure, lists, streams, NumPy arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from fedif_flower.errors import ValuationError
from fedif_flower.valuation import Validation
from tests.valuation.models import EXAMPLES, LABELS, ROWS, build, dict_loss, flat


def dict_score(model, batch):
    return (model(batch["img"]).argmax(1) == batch["label"]).float().mean()


class Stream(IterableDataset):
    def __init__(self, examples) -> None:
        self.examples = examples

    def __iter__(self):
        return iter(self.examples)


BATCHES = [{"img": ROWS[:3], "label": LABELS[:3]}, {"img": ROWS[3:], "label": LABELS[3:]}]


@pytest.mark.parametrize(
    "data",
    [
        Stream(EXAMPLES),
        DataLoader(EXAMPLES, batch_size=2),
        DataLoader(Stream(BATCHES), batch_size=None),
        {"img": ROWS.numpy(), "label": LABELS.numpy()},
        BATCHES,
        iter(BATCHES),
    ],
    ids=["stream", "loader", "loader of batches", "NumPy", "list", "once"],
)
def test_batches_that_are_dictionaries(data):
    model = build(nn.Linear, 3, 2)
    validation = Validation(
        model, data, batch_loss=dict_loss, score=dict_score, device="cpu", batch_size=2
    )
    expected = Validation(model, ROWS, LABELS, device="cpu")
    params = flat(model)
    assert validation.num_examples == 5
    torch.testing.assert_close(validation.gradient(params), expected.gradient(params))
    loss, accuracy, score = validation.evaluate(params)
    assert loss == pytest.approx(expected.loss(params))
    assert score == pytest.approx(expected.accuracy(params))
    assert accuracy != accuracy  # NaN
    assert validation.metrics == {"loss", "score"}


def test_sizes_of_the_user_s_own_weigh_the_batches():
    def per_token(model, batch):
        return model(batch["x"]).mean(), int(batch["tokens"].sum())

    model = build(nn.Linear, 1, 1)
    batches = [
        {"x": torch.tensor([[1.0]]), "tokens": torch.tensor([3])},
        {"x": torch.tensor([[5.0]]), "tokens": torch.tensor([1])},
        {"x": torch.tensor([[9.0]]), "tokens": torch.tensor([0])},  # all padding
    ]
    validation = Validation(model, iter(batches), batch_loss=per_token, device="cpu")
    assert validation.num_examples == 4
    assert validation.gradient(flat(model)).tolist() == [2.0, 1.0]  # (3 * 1 + 1 * 5) / 4


PAIRS = list(zip(ROWS, LABELS, strict=True))


def test_single_examples_are_not_taken_for_batches():
    with pytest.raises(ValuationError, match=r"which is a single example.*with a batch_size"):
        Validation(build(nn.Linear, 3, 2), PAIRS, device="cpu")


def read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        (read_only(ROWS.numpy().copy()), LABELS.numpy().astype(">i8")),
        (np.asfortranarray(ROWS.numpy()), LABELS.numpy()[::-1][::-1]),
        ([(ROWS[:3].numpy(), LABELS[:3].numpy()), (ROWS[3:].numpy(), LABELS[3:].numpy())], None),
    ],
    ids=["other bytes", "other order", "batches"],
)
@pytest.mark.filterwarnings("error")
def test_numpy_arrays_are_as_good_as_tensors(inputs, targets):
    model = build(nn.Linear, 3, 2)
    found = Validation(model, inputs, targets, device="cpu")
    expected = Validation(model, ROWS, LABELS, device="cpu")
    assert found.evaluate(flat(model)) == pytest.approx(expected.evaluate(flat(model)), nan_ok=True)
