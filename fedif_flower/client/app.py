"""The ClientApp: message -> my data, my behaviour, training -> reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedif_flower.client.reply import describe_node, train_round
from fedif_flower.client.statement import keep_statement
from fedif_flower.messages.delivery import ACTION
from fedif_flower.tasks.task import Task

Describe = Callable[[Message, Context], Message]


def task_app(
    task: Task | None = None, mods: Sequence[Mod] = (), describe: Describe = describe_node
) -> ClientApp:
    """Return the ClientApp of a task.

    Parameters
    ----------
    task : Task, optional
        What the app is about; ``None``: the run config names a task.
    mods : sequence of callable
        Called around each message, as Flower's ``ClientApp`` has them.
    describe : callable
        ``describe(message, context)`` answers the question who this node is.
    """
    client = ClientApp(mods=list(mods))

    @client.query()
    def query(message: Message, context: Context) -> Message:
        """Say which partition this node holds."""
        return describe(message, context)

    @client.query(ACTION)
    def statement(message: Message, context: Context) -> Message:
        """Keep the page that says what this node contributed."""
        return keep_statement(message, context)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        """Train the received model on this node's data."""
        return train_round(message, context, task)

    return client


app = task_app()
