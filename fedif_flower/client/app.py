"""The ClientApp: message -> my data, my behaviour, training -> reply.

Outside a simulation each message has a process of its own: only what trains imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedif_consortium.statement.delivery_messages import ACTION
from fedif_consortium.statement.member_pages import keep_statement

if TYPE_CHECKING:
    from fedif_flower.tasks.task import Task


def task_app(task: Task | None = None, mods: Sequence[Mod] = ()) -> ClientApp:
    """Return the ClientApp of a task.

    Parameters
    ----------
    task : Task, optional
        What the app is about; ``None``: the run config names a task.
    mods : sequence of callable
        Called around each message, as Flower's ``ClientApp`` has them.
    """
    client = ClientApp(mods=list(mods))

    @client.query()
    def query(message: Message, context: Context) -> Message:
        """Say which partition this node holds and, if asked, whether it can take part."""
        from fedif_flower.client.preflight import describe

        return describe(message, context, task)

    @client.query(ACTION)
    def statement(message: Message, context: Context) -> Message:
        """Keep the page that says what this node contributed."""
        return keep_statement(message, context)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        """Train the received model on this node's data."""
        from fedif_flower.client.reply import train_round

        return train_round(message, context, task)

    return client


app = task_app()
