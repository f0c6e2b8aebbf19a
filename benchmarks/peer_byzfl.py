"""ByzFL's FedAvg on the same clients, in one process; and its robust aggregators on given vectors.

Follows the FedAvg branch of ``byzfl.benchmark.train``: sampled clients train, the server averages,
every client gets the new model. Its loaders hold per-item transforms, as its benchmark's do.
"""

from __future__ import annotations

import sys

import byzfl.fed_framework.models as models
import numpy as np
import torch
from byzfl import Client, Server
from torch.utils.data import DataLoader

from benchmarks.stock_app import Images, Net
from benchmarks.workload import (
    BATCH_SIZE,
    CLIENTS,
    LEARNING_RATE,
    MOMENTUM,
    RoundClock,
    Workload,
)

OPTIMIZER = {
    "model_name": "Net",
    "device": "cpu",
    "optimizer_name": "SGD",
    "optimizer_params": {"momentum": MOMENTUM},
    "learning_rate": LEARNING_RATE,
    "weight_decay": 0.0,
    "milestones": [],
    "learning_rate_decay": 1.0,
}


def loader(workload: Workload, client: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """Return a client's images in shuffled batches."""
    return DataLoader(Images(client, workload), batch_size=BATCH_SIZE, shuffle=True)


def main(workload: Workload) -> None:
    """Run the rounds that ours runs."""
    models.Net = Net
    own = {
        "loss_name": "CrossEntropyLoss",
        "LabelFlipping": False,
        "momentum": MOMENTUM,
        "nb_labels": 10,
        "store_per_client_metrics": False,
    }
    clients = [
        Client({**OPTIMIZER, **own, "training_dataloader": loader(workload, client)})
        for client in range(CLIENTS)
    ]
    average = {"name": "Average", "parameters": {}}
    server = Server(
        {
            **OPTIMIZER,
            "test_loader": loader(workload, 0),
            "aggregator_info": average,
            "pre_agg_list": [],
        }
    )
    clock = RoundClock()
    clock.start()
    for server_round in range(1, workload.rounds + 1):
        sampled = workload.sampled(server_round)
        weights = []
        for client in sampled:
            clients[client].compute_model_update(workload.steps_of(client))
            weights.append(clients[client].get_flat_parameters())
        server.update_model_with_weights(weights)
        state = server.get_dict_parameters()
        for other in clients:
            other.set_model_state(state)
        clock.end(sum(map(workload.steps_of, sampled)))
    if not np.isfinite(server.get_flat_parameters().numpy()).all():
        raise RuntimeError("the model is not finite")
    clock.print()


if __name__ == "__main__":
    main(Workload.from_json(sys.argv[1]))
