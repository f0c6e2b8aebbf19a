"""Arrays that are not trained, and tied ones: in models of others, and of hostile clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedif_flower import RFA, FedAvg, FedIF, FedProx, FLTrust, Krum, RobustRule, Validation
from fedif_flower.client.training import TrainingConfig, train_local
from fedif_flower.devices import torch_threads
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import load_arrays, model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import RootTraining, ScreenedStrategy, Setup
from fedif_flower.tasks.modules import tied_names
from tests.server.hostile import reply_of
from tests.strategies.lines import BASE, KINDS, built

TOKENS = torch.tensor([0, 1, 2, 3, 0, 1])
NEXT = torch.tensor([1, 2, 3, 0, 1, 2])
UNTIED, UNMASKED, COUNTED = 1, 2, 3  # Partitions.


class LanguageModel(nn.Module):
    """Embedding and head share their weight; buffers have every dtype that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("allowed", torch.tensor([True, False]))
        self.register_buffer("rotary", torch.polar(torch.ones(2), torch.arange(2.0)))
        for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.int8):
            self.register_buffer(str(dtype)[6:], torch.tensor([0, 7], dtype=dtype))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scale * self.head(self.embedding(tokens)) + self.mask[-1]


def model() -> nn.Module:
    torch.manual_seed(0)
    return LanguageModel()


def client(message: Message, context: Context) -> Message:
    """Take a small step; three of the partitions send what no honest client would."""
    partition_id = int(context.node_config["partition-id"])
    net = LanguageModel()
    load_arrays(net, message.content["arrays"])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.01 * (partition_id + 1)
    arrays = dict(model_arrays(net))
    if partition_id == UNTIED:
        arrays["head.weight"] = pack_array(arrays["head.weight"].numpy() + np.float32(1))
    elif partition_id == UNMASKED:
        arrays["mask"] = pack_array(np.zeros((4, 4), np.float32))
    elif partition_id == COUNTED:
        arrays["int8"] = pack_array(arrays["int8"].numpy() + np.int8(1))
    return reply_of(message, arrays, {"num-examples": 10})


TIED = Setup(device="cpu", tied_keys=tied_names(model()))  # Where nothing else tells.


@pytest.mark.parametrize("kind", KINDS)
def test_tied_parameters_and_odd_buffers_go_through_a_round(kind):
    # Nothing else tells these which arrays are one.
    told = {"setup": TIED} if kind in (FedAvg, FedProx, RobustRule) else {}
    strategy = built(kind, model(), (TOKENS, NEXT), **told)
    sent = model_arrays(model())
    result = strategy.start(LocalGrid(client, 8), sent, num_rounds=2)
    for report in strategy.history.rounds:
        assert not report.failed
        refused = {c.node.node_id - 1000: c.rejection for c in report.clients if c.rejection}
        assert refused.keys() == {UNTIED, UNMASKED, COUNTED}
        assert "'head.weight' differs from 'embedding.weight'" in refused[UNTIED]
        assert "'mask' was changed; allowed: exactly the values sent" in refused[UNMASKED]
        assert "'int8' was changed" in refused[COUNTED]
    state, before = result.arrays.to_torch_state_dict(), model().state_dict()
    assert list(state) == list(before)
    assert torch.equal(state["head.weight"], state["embedding.weight"])
    assert not torch.equal(state["head.weight"], before["head.weight"])
    for key in before.keys() - {"head.weight", "head.bias", "embedding.weight"}:
        assert torch.equal(state[key], before[key]), key
        assert state[key].dtype == before[key].dtype, key


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other take longer than these models do."""
    with torch_threads(1):
        yield


TRAINING = TrainingConfig(local_epochs=1, batch_size=8, learning_rate=0.05)


def normalised() -> nn.Module:
    """A tiny model with batch norm and a frozen first layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 8, bias=False), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
    )
    model[0].weight.requires_grad_(False)
    return model


def examples(seed: int, size: int = 64) -> tuple[Tensor, Tensor]:
    """Two clouds far from 0, so that the statistics matter: inputs ``[n, 2]``, labels ``[n]``."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(size) % 2
    return labels[:, None] * 3.0 + 5.0 + torch.randn(size, 2, generator=generator), labels


class Training:
    """Clients that train; partition 1 then fills the arrays of a name."""

    def __init__(self, name: str | None, value: float) -> None:
        self.name, self.value = name, value
        self.received: set[bytes] = set()  # The frozen layer.

    def __call__(self, message: Message, context: Context) -> Message:
        partition_id = int(context.node_config["partition-id"])
        model, arrays = normalised(), message.content.array_records["arrays"]
        self.received.add(arrays["0.weight"].data)
        load_arrays(model, arrays)
        train_local(model, *examples(partition_id), TRAINING, torch.Generator().manual_seed(0))
        state = model.state_dict()
        if partition_id == 1 and self.name is not None:
            for key in (key for key in state if key.endswith(self.name)):
                state[key].fill_(self.value)
        return reply_of(message, state, {"num-examples": 64, "train-loss": 1.0})


def of(strategy: str, model: nn.Module) -> ScreenedStrategy:
    validation = Validation(model, *examples(100), device="cpu")
    known = {"setup": Setup(device="cpu", trainable_keys=validation.parameter_names)}
    return {
        "fedif": lambda: FedIF(validation, **BASE),
        "fltrust": lambda: FLTrust(RootTraining(model, *examples(101), training=TRAINING), **BASE),
        # Nobody says which arrays are trained: batch norm's statistics are known by their names.
        "krum": lambda: RobustRule(Krum(malicious_fraction=0.2), **BASE),
        "rfa": lambda: RobustRule(RFA(), **BASE | known),
    }[strategy]()


def accuracy(strategy: str, name: str | None = None, value: float = 0.0) -> float:
    """Return the test accuracy after three rounds of ten clients, one of them hostile."""
    model, clients = normalised(), Training(name, value)
    sent = model_arrays(model)
    load_arrays(model, of(strategy, model).start(LocalGrid(clients, 10), sent, 3).arrays)
    assert clients.received == {sent["0.weight"].data}  # What nobody trains stays to the bit.
    inputs, labels = examples(200, size=512)
    return float((model.eval()(inputs).argmax(dim=1) == labels).float().mean())


@pytest.mark.parametrize("strategy", ["fedif", "fltrust", "krum", "rfa"])
def test_statistics_of_one_hostile_client_do_not_cost_accuracy(strategy):
    clean = accuracy(strategy)
    assert clean > 0.85
    statistics = [("running_var", 1e5), ("running_var", 0.0), ("running_mean", 1e6)]
    for name, value in [*statistics, ("0.weight", 3.0)]:
        assert accuracy(strategy, name, value) >= clean - 0.02, (name, value)
