"""What a model's last fully connected layer is given, on models whose answer is known by hand."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedif_flower.tasks.modules import last_layer_inputs

LABELS = torch.tensor([0])


def test_it_is_what_the_last_linear_layer_is_given():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
    batches = [(torch.tensor([[1.0, -1.0]]), LABELS)] * 2
    assert last_layer_inputs(model, batches).tolist() == [[1.0, 0.0]] * 2
    assert not model[2]._forward_pre_hooks


def test_a_model_without_such_a_layer_has_its_outputs():
    batches = [(torch.tensor([[1.0, -1.0]]), LABELS)] * 2
    assert last_layer_inputs(nn.Flatten(), batches).tolist() == [[1.0, -1.0]] * 2
    assert last_layer_inputs(nn.Flatten(0), batches) is None  # One row would be two examples.


class TwoHeads(nn.Module):
    """Registers last a layer that it does not call: a head for training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.auxiliary_head = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(input=2 * inputs)


def test_the_last_layer_is_the_last_one_that_is_called():
    batches = [(torch.tensor([[1.0, -1.0]]), LABELS)]
    assert last_layer_inputs(TwoHeads(), batches).tolist() == [[2.0, -2.0]]


class OfTokens(nn.Module):
    """Sums up what a layer answers for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.layer.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens[:, :, None]).sum(dim=1)


def test_a_layer_that_is_given_each_token_has_no_features_of_examples():
    batches = [(torch.tensor([[1.0, 2.0, 3.0]]), LABELS), (torch.tensor([[4.0, 5.0]]), LABELS)]
    assert last_layer_inputs(OfTokens(), batches).tolist() == [[6.0], [9.0]]


def test_outputs_of_another_width_in_each_batch_cannot_be_compared():
    batches = [(torch.ones(1, 3), LABELS), (torch.ones(1, 2), LABELS)]
    assert last_layer_inputs(nn.Flatten(), batches) is None


def test_outputs_are_not_held_beside_features():
    """Those of a model that answers with images take far more room."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Unflatten(1, (2, 1)), nn.Upsample(1237)).eval()
    held = []

    def count_outputs() -> int:
        tensors = [found for found in gc.get_objects() if type(found) is Tensor]
        return sum(tensor.shape[-1:] in {(1237,), (2 * 1237,)} for tensor in tensors)

    def read() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(3):
            held.append(count_outputs())
            yield torch.ones(1, 2), LABELS

    assert last_layer_inputs(model, read()).tolist() == [[1.0, 1.0]] * 3
    assert held[1] == held[2]
