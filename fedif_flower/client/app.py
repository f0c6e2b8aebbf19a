"""The ClientApp: message -> my data, my behaviour, training -> reply.

Outside a simulation each message has a process of its own: only what trains imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedif_flower.client.part import ClientPart

if TYPE_CHECKING:
    from fedif_flower.tasks.task import Task


def task_app(
    task: Task | None = None, mods: Sequence[Mod] = (), parts: Sequence[ClientPart] = ()
) -> ClientApp:
    """Return the ClientApp of a task.

    Parameters
    ----------
    task : Task, optional
        What the app is about; ``None``: the run config names a task.
    mods : sequence of callable
        Called around each message, as Flower's ``ClientApp`` has them.
    parts : sequence of ClientPart
        What the client has beside its training, the outermost first.
    """
    client = ClientApp(mods=list(mods))

    @client.query()
    def query(message: Message, context: Context) -> Message:
        """Say which partition this node holds and, if asked, whether it can take part."""
        from fedif_flower.client.preflight import describe

        return describe(message, context, task, parts)

    for part in parts:
        for name, answer in part.queries.items():
            client.query(name)(answer)

    @client.train(mods=[mod for part in parts for mod in part.mods(task)])
    def train(message: Message, context: Context) -> Message:
        """Train the received model on this node's data."""
        from fedif_flower.client.reply import train_round

        return train_round(message, context, task)

    return client


app = task_app()
