"""The ClientApp: message -> my data, my behaviour, training -> reply."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedif_flower.client.reply import describe_node, train_round

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which partition this node holds."""
    return describe_node(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's data."""
    return train_round(message, context)
