"""The quickstart's clients, two of which do not behave, with a model that has an index besides.

The index, as BERT and ViT keep one, looks up a bias for each class.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from quickstart import task
from quickstart.client_app import app as quickstart

NOT_A_NUMBER, BAD_INDEX = task.MISLABELLED  # Partitions.
BESIDES = ("positions.weight", "position_ids")

app = ClientApp()


class Net(task.Net):
    """The quickstart's model, and a bias for each class that is looked up by an index."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding.from_pretrained(torch.zeros(10, 1), freeze=False)
        self.register_buffer("position_ids", torch.arange(10))

    def forward(self, x):
        """Map images ``[n, 3, 32, 32]`` to logits ``[n, 10]``."""
        return super().forward(x) + self.positions(self.position_ids).squeeze(1)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as the quickstart does; then spoil what two of the clients send."""
    received = message.content["arrays"].to_torch_state_dict()
    besides = {name: received[name] for name in BESIDES}
    reply = quickstart(_as_the_quickstart_knows_it(message), context)
    state = reply.content["arrays"].to_torch_state_dict() | besides
    if context.node_config["partition-id"] == NOT_A_NUMBER:
        state["fc1.weight"][0] = torch.nan
    elif context.node_config["partition-id"] == BAD_INDEX:
        state["position_ids"].fill_(10**6)
    reply.content["arrays"] = ArrayRecord(state)
    return reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate as the quickstart does."""
    return quickstart(_as_the_quickstart_knows_it(message), context)


def _as_the_quickstart_knows_it(message: Message) -> Message:
    """Return a message with the arrays of the quickstart's own model alone."""
    arrays = message.content["arrays"]
    own = ArrayRecord({name: array for name, array in arrays.items() if name not in BESIDES})
    message.content = RecordDict({**message.content, "arrays": own})  # others have the same record
    return message
