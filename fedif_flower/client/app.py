"""The ClientApp: it answers questions about its node, and trains the models it is sent.

Outside a simulation Flower starts a process for each message, and importing PyTorch takes long. So
functions import what they need when they are called: a message that a part answers without PyTorch
does not wait for it.
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
    """An addition to a client beside its training; a subclass overrides what it needs.

    Outside a simulation each message has a process of its own. To keep that quick, a part should
    import modules inside its functions.

    Attributes
    ----------
    queries : mapping of str to callable
        Functions that answer messages of the type ``query.NAME``, by name.
    """

    queries: ClassVar[Mapping[str, Answer]] = MappingProxyType({})

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return Flower mods to call around training, the outermost first.

        Parameters
        ----------
        task : Task, optional
            The app's own task; ``None``: the run config names one.
        """
        return ()

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:  # noqa: ARG002
        """Return findings, made before a run, about whether this node can take part in it.

        Parameters
        ----------
        node : NodeConfig
            The node's config.
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
        The app's own task; ``None``: the run config names a task.
    mods : sequence of callable
        Flower mods to call around every message.
    parts : sequence of ClientPart
        Additions to the client. The first one's mods are the outermost.
    """
    client = ClientApp(mods=list(mods))
    checks = [part.checks for part in parts]
    training_mods: list[Mod] = []
    for part in parts:
        training_mods += part.mods(task)

    @client.query()
    def query(message: Message, context: Context) -> Message:
        """Answer which partition this node holds and, if asked, whether it can take part."""
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
