"""The ClientApp: message -> my data, my behaviour, training -> reply.

Outside a simulation each message has a process of its own: only what trains imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

if TYPE_CHECKING:
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.messages.preflight import Finding
    from fedif_flower.tasks.task import Task


Answer = Callable[[Message, Context], Message]


class ClientPart:
    """Something a client can have beside its training; a subclass overrides what it needs.

    Each message has a process of its own outside a simulation: a part imports what it uses when it
    is used.

    Attributes
    ----------
    queries : mapping of str to callable
        Answers to messages of the type ``query.NAME``, by name.
    """

    queries: ClassVar[Mapping[str, Answer]] = MappingProxyType({})

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return what goes around training, the outermost first.

        Parameters
        ----------
        task : Task, optional
            The app's own; ``None``: the run config names one.
        """
        return ()

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:  # noqa: ARG002
        """Return what there is to say, before a run, of whether this node can take part in it.

        Parameters
        ----------
        node : NodeConfig
            The node's.
        settings : ConfigRecord
            The run's instructions.
        """
        return ()


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
    checks = [part.checks for part in parts]
    training_mods: list[Mod] = []
    for part in parts:
        training_mods += part.mods(task)

    @client.query()
    def query(message: Message, context: Context) -> Message:
        """Say which partition this node holds and, if asked, whether it can take part."""
        from fedif_flower.client.preflight import describe

        return describe(message, context, task, checks)

    for part in parts:
        for name, answer in part.queries.items():
            client.query(name)(answer)

    @client.train(mods=training_mods)
    def train(message: Message, context: Context) -> Message:
        """Train the received model on this node's data."""
        from fedif_flower.client.reply import train_round

        return train_round(message, context, task)

    return client


app = task_app()
