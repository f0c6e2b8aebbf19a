"""A Flower ``Grid`` that calls a ClientApp in this process: for tests, notebooks, debuggers.

The apps and messages are real. There is no Ray and no socket, so a round takes no longer than the
training of its clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedif_flower.registry import IN_PROCESS
from fedif_flower.runtime.answer import reply_of
from fedif_flower.settings import Scalar

ClientCall = Callable[[Message, Context], Message]
NodeConfigs = Mapping[int, Mapping[str, Scalar]]  # By partition: further keys of a node's config.
FIRST_NODE_ID = 1000


class NodeContexts(dict[int, Context]):
    """The contexts of nodes, by node id; each is made when it is first asked for.

    In a simulation of a million nodes, most are never asked for.
    """

    def __init__(self, num_nodes: int, node_configs: NodeConfigs) -> None:
        self._num_nodes = num_nodes
        self._node_configs = node_configs

    def __missing__(self, node_id: int) -> Context:
        """Make the context of a node that has none yet, and return it."""
        partition_id = node_id - FIRST_NODE_ID
        node_config = {
            "partition-id": partition_id,
            "num-partitions": self._num_nodes,
            **self._node_configs.get(partition_id, {}),
        }
        context = Context(
            run_id=1, node_id=node_id, node_config=node_config, state=RecordDict(), run_config={}
        )
        self[node_id] = context
        return context


class LocalGrid(Grid):
    """Nodes 1000, 1001 ... that hold partitions 0, 1 ..., each answering in this process.

    Parameters
    ----------
    client_app : callable
        A ``ClientApp``, or another callable that takes a message and a context.
    num_nodes : int
        How many nodes are online.
    node_configs : mapping of int to mapping, optional
        By partition: what the node's config has beside ``partition-id`` and ``num-partitions``.
    silent : collection of int
        Partitions whose nodes never answer.
    """

    reliable = True  # No client can make it wait or raise.

    def __init__(
        self,
        client_app: ClientCall,
        num_nodes: int,
        *,
        node_configs: NodeConfigs = MappingProxyType({}),
        silent: Collection[int] = (),
    ) -> None:
        # Flower stamps every message with the ids of the run, task and node that send it.
        TaskIdentity.run_id = 1
        TaskIdentity.task_id = 1
        TaskIdentity.node_id = 1
        self._client_app = client_app
        self._silent = {FIRST_NODE_ID + partition_id for partition_id in silent}
        self._waiting: dict[str, Message] = {}
        self._count = 0
        self.most_nodes = num_nodes  # More nodes can never come online, so nobody waits for them.
        self.node_ids: Sequence[int] = range(FIRST_NODE_ID, FIRST_NODE_ID + num_nodes)
        self.contexts: dict[int, Context] = NodeContexts(num_nodes, node_configs)

    def set_run(self, run: object) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> NoReturn:
        """Raise RuntimeError: a LocalGrid belongs to no run."""
        raise RuntimeError("a LocalGrid belongs to no run")

    def create_message(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise RuntimeError: the method is deprecated in Flower."""
        raise RuntimeError("construct a flwr.app.Message instead")

    def get_node_ids(self) -> list[int]:
        """Return every node's id."""
        return list(self.node_ids)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages and return their ids."""
        message_ids = []
        for message in messages:
            self._count += 1
            message_id = str(self._count)
            # Flower has no public way to set the id of a message.
            message.metadata.__dict__["_message_id"] = message_id
            self._waiting[message_id] = message
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let the nodes answer, and return their replies."""
        replies = []
        for message_id in message_ids:
            message = self._waiting.pop(message_id)
            if message.metadata.dst_node_id not in self._silent:
                replies.append(self._reply_to(message))
        return replies

    def _reply_to(self, message: Message) -> Message:
        """Return a node's reply.

        It is an error reply, as in Flower, if the client app raises an error or returns no message.
        """
        token = IN_PROCESS.set(True)
        try:
            answer = self._client_app(message, self.contexts[message.metadata.dst_node_id])
            return reply_of(answer, message)
        except Exception as error:
            return Message(Error(code=2, reason=repr(error)), reply_to=message)
        finally:
            IN_PROCESS.reset(token)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return all replies as a list, for loops that go through them twice."""
        return list(self.stream_replies(messages, timeout=timeout))

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages; return an iterator over the replies, which nothing else holds.

        A node answers only when the iterator comes to its reply, so that one reply is in memory at
        a time. If the iteration ends early, as in a round that closes early, the other nodes do
        not work.
        """
        del timeout  # There is nothing to wait for.
        return self._replies(self.push_messages(messages))

    def _replies(self, message_ids: Sequence[str]) -> Iterator[Message]:
        """Yield the replies one by one; forget the messages that nobody waits for any more."""
        try:
            for message_id in message_ids:
                yield from self.pull_messages([message_id])
        finally:
            for message_id in message_ids:
                self._waiting.pop(message_id, None)
