"""What a client makes of a question, whoever was asked before it in the same process."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from torch import Tensor, nn

from fedif_flower.attacks import Behaviour
from fedif_flower.client.app import task_app
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import ROUND_KEY, instructions
from fedif_flower.messages.models import (
    bfloat16_arrays,
    changed_arrays,
    load_arrays,
    tensor_arrays,
)
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.tasks.task import Task


class Doubling(nn.Linear):
    """Its outputs are multiplied by a buffer that is not sent, and doubled at each step."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, inputs):
        if self.training:
            self.scale.mul_(2.0)
        return super().forward(inputs) * self.scale


class Narrow(nn.Linear):
    """In bfloat16, which has eight bits for a number."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False, dtype=torch.bfloat16)


def sent_back(model: type[nn.Module], weight: float, learning_rate: float) -> list[float]:
    """Return what three clients make of a weight, each asked in turn for the square's slope."""

    def one(site):
        value = torch.ones(1, 1, dtype=next(model().parameters()).dtype)
        return value, 3.0 * value

    data = dict.fromkeys(("client_data", "validation_data", "test_data"), one)
    task = Task(name="own", model=model, loss=nn.functional.mse_loss, **data)
    config = ClientConfig(
        num_clients=3,
        task="this-app:own",
        local_epochs=1,
        batch_size=1,
        learning_rate=learning_rate,
        momentum=0.0,
        device="cpu",
    )
    grid = LocalGrid(task_app(task), 3)
    told = instructions(config, task, run="run")
    told[ROUND_KEY] = 1
    arrays: ArrayRecord = tensor_arrays({"weight": torch.tensor([[weight]])})
    content = RecordDict({"arrays": arrays, "config": told})
    questions = [Message(content, FIRST_NODE_ID + p, MessageType.TRAIN) for p in range(3)]
    replies = grid.send_and_receive(questions)
    return [reply.content["arrays"]["weight"].numpy().item() for reply in replies]


def test_a_client_begins_with_the_buffers_that_the_model_was_built_with():
    # 2 (2 w - 3) 2 at w = 1, the scale being 2: a step of 0.4.
    assert sent_back(Doubling, 1.0, 0.1) == pytest.approx([1.4] * 3)


class KeepsBuffers(Behaviour):
    """It trains as honest clients do, and sends buffers as it received them."""

    sends_buffers = False


def normed() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))


def reply_of(attack: str, received: dict[str, Tensor]) -> Message:
    """Return the reply of a client with batch norm, of two steps."""

    def four(site):
        return torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([0, 1, 0, 1])

    data = dict.fromkeys(("client_data", "validation_data", "test_data"), four)
    task = Task(name="own", model=normed, num_classes=2, **data)
    config = ClientConfig(
        num_clients=1,
        task="this-app:own",
        local_epochs=1,
        batch_size=2,
        device="cpu",
        attack=attack,
        malicious_fraction=1.0,
    )
    told = instructions(config, task, run="run")
    told[ROUND_KEY] = 1
    content = RecordDict({"arrays": tensor_arrays(received), "config": told})
    question = Message(content, FIRST_NODE_ID, MessageType.TRAIN)
    (reply,) = LocalGrid(task_app(task), 1).send_and_receive([question])
    return reply


def sent_by(attack: str, received: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the arrays that it sends."""
    return reply_of(attack, received).content["arrays"].to_torch_state_dict()


class InPlace(Behaviour):
    """It changes what it was given, and returns nothing."""

    def poison_update(self, own):
        own.trained.neg_()


class AsArray(Behaviour):
    def poison_update(self, own):
        return own.trained.numpy()


class Short(Behaviour):
    def poison_update(self, own):
        return own.trained[:-1]


@pytest.mark.parametrize(
    ("attack", "what"),
    [
        ("InPlace", "NoneType"),
        ("AsArray", "NumPy array float32 [6]"),
        ("Short", "float32 [5]"),
    ],
)
def test_an_attack_that_sends_no_vector_of_the_model_s_length_is_named(attack, what):
    # Two numbers of the batch norm, and a layer from one number to two.
    reply = reply_of(f"{__name__}:{attack}", normed().state_dict())
    words = f"attack {attack}: poison_update must return a vector of shape [6], not {what}"
    assert words in reply.error.reason


@pytest.mark.parametrize("attack", ["free-rider", "free-rider-step", "free-rider-noise"])
def test_a_free_rider_sends_buffers_as_it_received_them(attack):
    received = normed().state_dict()
    # In its first round it knows no step: it sends the model as it is.
    sent = sent_by(attack, received)
    assert all(torch.equal(sent[name], received[name]) for name in received)
    honest = sent_by("none", received)
    assert int(honest["0.num_batches_tracked"]) == 2
    assert not torch.equal(honest["0.running_mean"], received["0.running_mean"])


def test_what_was_trained_is_sent_without_the_buffers_of_the_training():
    received = normed().state_dict()
    sent = sent_by(f"{__name__}:KeepsBuffers", received)
    honest = sent_by("none", received)
    of_training = {name for name in received if not torch.equal(sent[name], received[name])}
    assert of_training == {name for name, _ in normed().named_parameters()}
    assert all(torch.equal(sent[name], honest[name]) for name in of_training)


def test_a_client_in_bfloat16_that_does_nothing_sends_what_it_received():
    weight = torch.tensor(1.00123).item()
    assert sent_back(Narrow, weight, 1e-30) == [weight] * 3


def test_a_client_in_bfloat16_sends_its_change():
    # 1.00123 is 1 in bfloat16; 2 (1 - 3) 0.125 = -0.5, from there.
    weight = torch.tensor(1.00123).item()
    assert sent_back(Narrow, weight, 0.125) == pytest.approx([weight + 0.5] * 3, rel=1e-6)


def test_a_variance_in_bfloat16_that_falls_to_nothing_is_sent_as_0():
    norm = nn.BatchNorm1d(1, affine=False, dtype=torch.bfloat16)
    received = tensor_arrays({**norm.state_dict(), "running_var": torch.tensor([1.005])})
    load_arrays(norm, received)
    loaded = bfloat16_arrays(norm)
    norm.running_var.zero_()
    # 1.005 is 1.0078125 in bfloat16: 1.005 - 1.0078125 is below 0, which no variance is.
    assert changed_arrays(norm, received, loaded)["running_var"].numpy().tolist() == [0.0]


def test_what_is_infinite_in_bfloat16_is_sent_back_as_it_was():
    mask = nn.Module()
    mask.register_buffer("mask", torch.tensor([0.0, -math.inf], dtype=torch.bfloat16))
    received = tensor_arrays(mask.state_dict())
    sent = changed_arrays(mask, received, bfloat16_arrays(mask))
    assert sent["mask"].numpy().tolist() == [0.0, -math.inf]
