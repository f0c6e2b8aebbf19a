"""What can be plugged into a client: Flower mods around its training, queries, checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from flwr.app import ConfigRecord, Context, Message
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
