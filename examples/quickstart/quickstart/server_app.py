"""The ServerApp, as in Flower's quickstart but for the strategy."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from torch.nn.functional import cross_entropy

from fedif_flower import FedIF, RunWriter, Validation
from quickstart.task import MISLABELLED, Net, load_held_out
from quickstart.task import test as test_fn

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    num_rounds = context.run_config["num-server-rounds"]
    validation_loader, test_loader = load_held_out(batch_size=32)
    model = Net()

    # Before: strategy = FedAvg(fraction_evaluate=0.5)
    strategy = FedIF(Validation(model, validation_loader, batch_loss=batch_loss), fraction_evaluate=0.5)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test_fn(model, test_loader, "cpu")
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=num_rounds,
        evaluate_fn=evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
    print(strategy.ledger.scores)
