"""The ServerApp, as in Flower's quickstart but for the strategy."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from torch.nn.functional import cross_entropy

from fedif_flower import FedIF, RunWriter, Validation
from quickstart.task import Net, load_held_out
from quickstart.task import test as test_fn

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    model = Net()
    validation_loader, _ = load_held_out(batch_size=32)
    validation = Validation(model, validation_loader, batch_loss=batch_loss)

    writer = RunWriter(context.run_config["output-dir"], validation=validation, title="Quickstart")

    # Before: strategy = FedAvg(fraction_evaluate=0.5)
    strategy = FedIF(validation, fraction_evaluate=0.5, callbacks=[writer])

    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
    print(f"Report: {writer.run_dir / 'report.md'}")


def batch_loss(model, batch):
    """Return the mean loss over a batch, and its size."""
    return cross_entropy(model(batch["img"]), batch["label"]), len(batch["label"])


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate a round's model on the server's test images."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    _, test_loader = load_held_out(batch_size=32)
    loss, accuracy = test_fn(model, test_loader, "cpu")
    print(f"round {server_round}: accuracy {100 * accuracy:.1f} %")
    return MetricRecord({"loss": loss, "accuracy": accuracy})
