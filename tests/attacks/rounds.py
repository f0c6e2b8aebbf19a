from __future__ import annotations

import torch

from fedif_flower.attacks import ClientRound


def client_round(received, trained, server_round=1, memory=None) -> ClientRound:
    """A client's round on small vectors."""
    return ClientRound(
        torch.tensor(received),
        torch.tensor(trained),
        server_round,
        torch.Generator().manual_seed(server_round),
        {} if memory is None else memory,
    )
