"""Floating-point arrays that are not trained, in the hands of a hostile client."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedif_flower import RFA, FedAvg, FedIF, FLTrust, Krum, RobustRule, Validation
from fedif_flower.client.training import TrainingConfig, train_local
from fedif_flower.messages.models import load_arrays, model_arrays
from fedif_flower.round import hold_within
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import RootTraining, ScreenedStrategy, Setup
from tests.strategies.hostile import reply_of
from tests.strategies.lines import BASE


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other take longer than these models do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def built(strategy: str, model: nn.Module) -> ScreenedStrategy:
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
    model = normalised()
    grid = LocalGrid(Training(name, value), 10)
    load_arrays(model, built(strategy, model).start(grid, model_arrays(model), 3).arrays)
    inputs, labels = examples(200, size=512)
    return float((model.eval()(inputs).argmax(dim=1) == labels).float().mean())


@pytest.mark.parametrize("strategy", ["fedif", "fltrust", "krum", "rfa"])
def test_statistics_of_one_hostile_client_do_not_cost_accuracy(strategy):
    clean = accuracy(strategy)
    assert clean > 0.85
    for name, value in [("running_var", 1e5), ("running_var", 0.0), ("running_mean", 1e6)]:
        assert accuracy(strategy, name, value) >= clean - 0.02, (name, value)


@pytest.mark.parametrize("strategy", ["fedif", "rfa", "fltrust"])
def test_what_nobody_trains_stays_to_the_bit(strategy):
    model, clients = normalised(), Training("0.weight", 3.0)
    built(strategy, model).start(LocalGrid(clients, 5), model_arrays(model), num_rounds=2)
    assert clients.received == {model_arrays(model)["0.weight"].data}


def test_a_variance_beyond_all_measure_is_refused_by_name():
    strategy = FedAvg(**BASE)
    grid = LocalGrid(Training("running_var", 1e12), 3)
    strategy.start(grid, model_arrays(normalised()), num_rounds=1)
    reason = "array '2.running_var' has variances from 1e+12 to 1e+12, where the model sent"
    *accepted, refused = (client.rejection for client in strategy.history.rounds[0].clients)
    assert (accepted, refused) == (["", ""], f"{reason} had at most 1")


def test_combined_statistics_lie_within_what_was_sent_and_received():
    sent = torch.tensor([1.0, 1.0, 1.0])
    changes = torch.tensor([[-0.9, 2.0, 1.0], [-0.5, 1.0, 1.0]])
    # Coefficients of FLTrust may sum to more than 1: a variance of 1 - 1.4 is none.
    combined = sent + changes.sum(dim=0)
    assert hold_within(combined, sent, changes).tolist() == pytest.approx([0.1, 3.0, 2.0])
    # The received value counts too: no weight leaves it where it is.
    assert hold_within(sent, sent, changes).tolist() == [1.0, 1.0, 1.0]
