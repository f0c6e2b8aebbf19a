"""The quickstart's clients, two of which do not behave."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from tests.integration.quickstart.client_app import app as quickstart

NOT_A_NUMBER, BAD_INDEX = 1, 3  # Partitions.

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as the quickstart does; then spoil what two of the clients send."""
    reply = quickstart(message, context)
    state = reply.content["arrays"].to_torch_state_dict()
    if context.node_config["partition-id"] == NOT_A_NUMBER:
        state["fc1.weight"][0] = torch.nan
    elif context.node_config["partition-id"] == BAD_INDEX:
        state["position_ids"].fill_(10**6)
    reply.content["arrays"] = ArrayRecord(state)
    return reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate as the quickstart does."""
    return quickstart(message, context)
