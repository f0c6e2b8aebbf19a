"""Flower's `advanced-pytorch` app in small, written anew, with FedIF where it has FedAvg.

Its strategy has a `start` of its own: that keeps what each round gives in a file, saves the best
model so far, and never calls the `start` that it overrides. Its `configure_train` changes the
clients' learning rate at a certain round.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from torch import nn

from fedif_flower import FedIF, PathAttribution, RunWriter, Validation
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup

MEMBERS, ROUNDS = 4, 4
MISLABELLED, BROKEN = 1, 3
CENTRES = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])


def examples(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sixteen points, half of them around either centre, and which one it is."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(16) % 2
    return CENTRES[labels] + torch.randn(16, 2, generator=generator), labels


def net() -> nn.Module:
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def loaded(arrays: ArrayRecord) -> nn.Module:
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return model


def accuracy(model: nn.Module, seed: int) -> float:
    inputs, labels = examples(seed)
    return float((model(inputs).argmax(dim=1) == labels).float().mean())


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take a step of gradient descent with the learning rate that the server says."""
    partition = int(context.node_config["partition-id"])
    inputs, labels = examples(partition)
    labels = 1 - labels if partition == MISLABELLED else labels
    learning_rate = float(message.content["config"]["lr"])
    model = loaded(message.content["arrays"])
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    state = model.state_dict()
    if partition == BROKEN:
        state["bias"] = state["bias"] * torch.nan
    metrics = {"num-examples": 16, "train_loss": loss.item(), "lr": learning_rate}
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Tell how often the new model is right about the member's own examples."""
    partition = int(context.node_config["partition-id"])
    found = {"num-examples": 16, "eval_acc": accuracy(loaded(message.content["arrays"]), partition)}
    return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)


def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": accuracy(loaded(arrays), seed=99)})


class Scheduled(FedIF):
    """Halves the learning rate at round 3."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 3:
            config["lr"] = config["lr"] / 2
        return super().configure_train(server_round, arrays, config, grid)


class Custom(Scheduled):
    """Has a loop of its own, in which what it finds goes to files."""

    def save_to(self, path: Path) -> None:
        self.save_path = path
        self.best_so_far = 0.0

    def start(
        self,
        grid,
        initial_arrays,
        num_rounds=3,
        timeout=3600,
        train_config=None,
        evaluate_config=None,
        evaluate_fn=None,
    ):
        self.summary()
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        result, arrays, told = Result(), initial_arrays, []
        result.evaluate_metrics_serverapp[0] = evaluate_fn(0, arrays)
        for number in range(1, num_rounds + 1):
            messages = self.configure_train(number, arrays, train_config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            combined, trained = self.aggregate_train(number, replies)
            if combined is not None:
                result.arrays = arrays = combined
            if trained is not None:
                result.train_metrics_clientapp[number] = trained
            messages = self.configure_evaluate(number, arrays, evaluate_config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            of_clients = self.aggregate_evaluate(number, replies)
            if of_clients is not None:
                result.evaluate_metrics_clientapp[number] = of_clients
            of_server = evaluate_fn(number, arrays)
            result.evaluate_metrics_serverapp[number] = of_server
            self._save_best(number, of_server["accuracy"], arrays)
            told.append([number, *map(dict, (trained, of_clients, of_server))])
            (self.save_path / "results.json").write_text(json.dumps(told))
        return result

    def _save_best(self, number: int, found: float, arrays: ArrayRecord) -> None:
        if found > self.best_so_far:
            self.best_so_far = found
            torch.save(arrays.to_torch_state_dict(), self.save_path / f"best-{number}.pth")


def built(kind: type[FedIF], folder: Path) -> tuple[FedIF, PathAttribution]:
    inputs, labels = examples(seed=99)
    held_out = Validation(net(), inputs, labels, device="cpu")
    attribution = PathAttribution(held_out)
    callbacks = [attribution, RunWriter(folder, validation=held_out)]
    return kind(held_out, callbacks=callbacks, setup=Setup(device="cpu")), attribution


def started(strategy: FedIF) -> Result:
    return strategy.start(
        grid=LocalGrid(app, MEMBERS),
        initial_arrays=ArrayRecord(net().state_dict()),
        train_config=ConfigRecord({"lr": 0.2}),
        evaluate_fn=central,
        num_rounds=ROUNDS,
    )


def test_an_app_with_a_start_of_its_own_has_all_that_fedif_promises(tmp_path):
    strategy, attribution = built(Custom, tmp_path / "run")
    strategy.save_to(tmp_path)
    result = started(strategy)

    # What the app does itself.
    told = json.loads((tmp_path / "results.json").read_text())
    assert [trained["lr"] for _, trained, *_ in told] == pytest.approx([0.2, 0.2, 0.1, 0.1])
    assert told[-1][3]["accuracy"] > 0.8
    assert all(of_clients["eval_acc"] > 0.8 for _, _, of_clients, _ in told)
    best = torch.load(next(iter(sorted(tmp_path.glob("best-*.pth")))))
    assert set(best) == {"weight", "bias"}

    # What FedIF does in it: as in its own loop, to the last bit.
    plain, of_plain = built(Scheduled, tmp_path / "plain")
    expected = started(plain)
    assert result.arrays == expected.arrays == strategy.model.record
    assert result.train_metrics_clientapp == expected.train_metrics_clientapp
    assert result.evaluate_metrics_clientapp == expected.evaluate_metrics_clientapp
    assert strategy.completed_rounds == ROUNDS
    assert attribution.contributions == of_plain.contributions
    assert attribution.contributions[f"node {1000 + MISLABELLED}"] == 0  # It has no weight.
    assert min(strategy.ledger.scores, key=strategy.ledger.scores.get) == 1000 + MISLABELLED
    for report in strategy.history.rounds:
        refused = [client.node.node_id for client in report.clients if client.rejection]
        assert refused in ([1000 + BROKEN], [])  # It is paused in between.
    folder = RunFolder(tmp_path / "run")
    assert [int(row["round"]) for row in folder.rounds.read()] == [*range(ROUNDS + 1)]
    assert {path.name for path in folder.path.iterdir()} >= {"report.md", "attribution.csv"}
