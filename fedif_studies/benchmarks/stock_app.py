"""A Flower app as one writes it from the tutorials: the stock way to do the same training.

A plain ``torch.nn`` model, a ``DataLoader`` over per-item transforms, ``torch.optim.SGD``,
Flower's own ``FedAvg`` and its simulation engine. Images come from the same prepared arrays and
partitions as ours (Flower's tutorial decodes a PNG per item on top of that).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from fedif_studies.benchmarks.workload import (
    BATCH_SIZE,
    CLIENTS,
    LEARNING_RATE,
    RoundClock,
    Workload,
)

app = ClientApp()


class Net(nn.Module):
    """The CIFAR-10 CNN, written the usual way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.dropout = nn.Dropout(0.2)
        self.fc1 = nn.Linear(32 * 8 * 8, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[n, 3, 32, 32]`` to logits ``[n, 10]``."""
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = self.dropout(torch.flatten(x, 1))
        x = self.dropout(functional.relu(self.fc1(x)))
        return cast(Tensor, self.fc2(x))


class Images(Dataset[tuple[Tensor, int]]):
    """A client's images, transformed one by one."""

    def __init__(self, client: int, workload: Workload) -> None:
        train = workload.dataset.train
        self._chosen = workload.partitions[client]
        self._images, self._labels = train.images, train.labels
        self._transform = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
        )

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        chosen = self._chosen[index]
        image = Image.fromarray(self._images[chosen].transpose(1, 2, 0))
        return self._transform(image), int(self._labels[chosen])


@lru_cache(maxsize=1)
def shared_workload(data_dir: str, epochs: int) -> Workload:
    """Return the images and partitions, opened once in a process."""
    return Workload(data_dir, 0, epochs)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's images."""
    config = message.content.config_records["config"]
    model = Net()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    batch_size, epochs = cast(int, config["batch-size"]), cast(int, config["local-epochs"])
    workload = shared_workload(str(config["data-dir"]), epochs)
    images = Images(int(context.node_config["partition-id"]), workload)
    loader = DataLoader(images, batch_size=batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=cast(float, config["lr"]), momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    model.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    steps = epochs * len(loader)
    metrics = MetricRecord(
        {"train_loss": running_loss / steps, "num-examples": len(images), "steps": steps}
    )
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def main(workload: Workload) -> None:
    """Run the app on Flower's simulation engine."""
    from flwr.simulation import run_simulation

    clock = RoundClock()
    server_app = ServerApp()

    def count(records: list[RecordDict], _: str) -> MetricRecord:
        steps = [cast(int, r.metric_records["metrics"]["steps"]) for r in records]
        return MetricRecord({"steps": sum(steps)})

    class TimedFedAvg(FedAvg):
        """Flower's FedAvg; notes the end of each round."""

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            arrays, metrics = super().aggregate_train(server_round, replies)
            clock.end(cast(int, metrics["steps"]) if metrics else 0)
            return arrays, metrics

    @server_app.main()
    def _(grid: Grid, _: Context) -> None:
        strategy = TimedFedAvg(
            fraction_train=0.1,
            fraction_evaluate=0.0,
            min_available_nodes=CLIENTS,
            train_metrics_aggr_fn=count,
        )
        config = ConfigRecord(
            {
                "data-dir": workload.data_dir,
                "batch-size": BATCH_SIZE,
                "local-epochs": workload.epochs,
                "lr": LEARNING_RATE,
            }
        )
        clock.start()
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(Net().state_dict()),
            num_rounds=workload.rounds,
            train_config=config,
        )

    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=server_app,
        client_app=app,
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"log_to_driver": False, "logging_level": "error"},
        },
    )
    clock.print()


if __name__ == "__main__":
    # By its own name: actors must find the app's functions in a module, not in __main__.
    from fedif_studies.benchmarks import stock_app

    stock_app.main(Workload.from_json(sys.argv[1]))
