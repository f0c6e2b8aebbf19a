"""A Flower ``Grid`` on Ray: Flower's own actors, fed directly.

Flower's simulation stores every message in a link state, and polls it for each node in turn, ten
times a second. With 10,000 nodes and 100 clients a round, the polling may take longer than the
training. Here a message goes straight to a free actor, whatever the number of nodes.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.fleet.vce.backend import Backend, BackendConfig

from fedif_flower.errors import ConfigError, FedIFError, require
from fedif_flower.runtime.answer import reply_of
from fedif_flower.runtime.local_grid import LocalGrid

if TYPE_CHECKING:
    from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend
    from flwr.simulation.ray_transport.ray_actor import BasicActorPool

_POLL_SECONDS = 0.05


class RayGrid(LocalGrid):
    """Nodes 1000, 1001 ... that hold partitions 0, 1 ..., answering from Ray's actors.

    Parameters
    ----------
    client_app : ClientApp
        What every node runs.
    num_nodes : int
        How many nodes there are.
    backend : Backend
        Flower's Ray backend, on which ``build`` was called.
    """

    simulated = True  # So a node is identified by the order in which the nodes were registered.

    def __init__(self, client_app: ClientApp, num_nodes: int, backend: Backend) -> None:
        super().__init__(client_app, num_nodes)
        self._backend = backend
        self._executor = ThreadPoolExecutor(backend.num_workers, "ray-client")
        self._futures: dict[str, Future[Message]] = {}
        self._at_work: set[Future[Message]] = set()  # Clients that have not finished.
        self._keeping = Lock()  # Guards contexts, which several threads may replace.

    def get_nodes(self) -> list[NodeInfo]:
        """Return information on every node; nodes are registered in the order of partitions."""
        return [NodeInfo(node_id=i, registered_at=f"{i:020d}") for i in self.node_ids]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hand messages to the actors and return their ids."""
        message_ids = super().push_messages(messages)
        for message_id in message_ids:
            future = self._executor.submit(self._answer, self._waiting.pop(message_id))
            self._at_work.add(future)
            future.add_done_callback(self._at_work.discard)
            self._futures[message_id] = future
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived; each reply is returned once."""
        replies = []
        for message_id in message_ids:
            future = self._futures.get(message_id)
            if future is not None and future.done():
                del self._futures[message_id]
                replies.append(future.result())
        return replies

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages; return an iterator over the replies as they come.

        Nothing else holds a reply. A client that has not begun to work when the time is over is not
        asked any more.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        message_ids = self.push_messages(messages)
        futures = {self._futures.pop(message_id) for message_id in message_ids}
        return self._arrivals(futures, deadline)

    def _arrivals(self, waiting: set[Future[Message]], deadline: float | None) -> Iterator[Message]:
        """Yield replies as they come, until the deadline; cancel what no actor has begun then."""
        # A queue, since concurrent.futures.wait would look at all futures again for each reply.
        arrived: SimpleQueue[Future[Message]] = SimpleQueue()
        for future in waiting:
            future.add_done_callback(arrived.put)
        try:
            while waiting:
                future = arrived.get(timeout=_seconds_left(deadline))
                waiting.remove(future)
                yield future.result()
                del future  # The future holds the reply: let the caller be the only one to keep it.
        except Empty:  # The time is over.
            return
        finally:
            for late in waiting:
                late.cancel()

    def close(self, interrupt: Callable[[], None] = lambda: None) -> None:
        """Send nothing more; wait for clients that still work, which ``interrupt`` may stop."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        # If Ray were shut down while clients work, their threads would wait for ever.
        while self._at_work:
            interrupt()
            time.sleep(_POLL_SECONDS)

    def _answer(self, message: Message) -> Message:
        """Let an actor answer a message; keep what the answer changes of the node's state."""
        node_id = message.metadata.dst_node_id
        sent = dict(self.contexts[node_id].state)
        try:
            reply, context = self._backend.process_message(message, self.contexts[node_id])
        except Exception as error:
            return Message(_error_of(error), reply_to=message)
        # A node that was too late may have been asked again meanwhile, and then two answers change
        # its state: of each, only the entries that it has changed or removed are taken over.
        state = context.state
        changed = {}
        for key in state:
            if key not in sent or state[key] != sent[key]:
                changed[key] = state[key]
        with self._keeping:
            kept = dict(self.contexts[node_id].state)
            for key in sent.keys() - state.keys():
                kept.pop(key, None)
            context.state = RecordDict({**kept, **changed})
            self.contexts[node_id] = context
        return reply_of(reply, message)


def _seconds_left(deadline: float | None) -> float | None:
    """Return the seconds until a deadline by time.monotonic; ``None``: there is no deadline."""
    if deadline is None:
        return None
    return max(deadline - time.monotonic(), 0.0)


def _error_of(error: Exception) -> Error:
    """Return Flower's error for a reply, which says in words what went wrong at a client."""
    code = ErrorCode.UNKNOWN
    if isinstance(error, ClientAppException):
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    # A reader wants to know what went wrong, but Ray puts the actor's traceback before that, and
    # Flower its own words, twice. Ray has the error itself in ``cause``.
    text = str(getattr(error, "cause", None) or error)
    return Error(code=code, reason=text.split("ClientAppException occurred. Message: ")[-1])


def _replace_dead_actors(pool: BasicActorPool) -> None:
    """Let a pool make a new actor for each one that a client or a lack of memory has killed.

    Flower puts the dead actor back into its pool. It fails at once whenever it gets a message, so
    it is free most often, and gets most of the messages.
    """
    from ray.exceptions import OutOfMemoryError, RayActorError

    fetch = pool.fetch_result_and_return_actor_to_pool

    def fetch_or_replace(future: Any) -> tuple[Message, Context]:
        try:
            return fetch(future)
        except (RayActorError, OutOfMemoryError):
            pool._future_to_actor[future] = pool.create_actor_fn()  # type: ignore[no-untyped-call]
            raise

    pool.fetch_result_and_return_actor_to_pool = fetch_or_replace  # type: ignore[method-assign]


@contextmanager
def ray_grid(
    client_app: ClientApp, num_nodes: int, *, cpus_per_client: int = 1, gpus_per_client: float = 0.0
) -> Iterator[RayGrid]:
    """Start Ray with Flower's actors, and return a grid on them; both end with the context.

    Parameters
    ----------
    client_app : ClientApp
        What each node runs.
    num_nodes : int
        The number of simulated nodes, >= 1.
    cpus_per_client : int
        CPU cores that Ray reserves for a client while it works, >= 1.
    gpus_per_client : float
        GPUs that Ray reserves for a client, >= 0; with 0.1, ten clients share one.

    Raises
    ------
    ConfigError
        If one of the two is out of range, or there is no room for a single client.
    FedIFError
        If Ray does not start.
    """
    require(cpus_per_client >= 1, "cpus_per_client", cpus_per_client, ">= 1")
    require(gpus_per_client >= 0, "gpus_per_client", gpus_per_client, ">= 0")
    # Flower logs every round's settings and metrics, but the run's own records have them.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        backend = _new_backend(cpus_per_client, gpus_per_client)
    except Exception as error:  # Ray may raise anything, even a bare Exception.
        raise _not_started(error) from error

    def load() -> ClientApp:
        return client_app

    def import_app() -> None:
        """Do nothing: before an actor can call this, it imports the app, and torch with it."""
        load()

    # Actors call it as they start, so that they import while the server reads its data.
    backend.actor_kwargs["on_actor_init_fn"] = import_app
    try:
        try:
            backend.build(load)
        except ValueError as error:
            raise ConfigError(
                f"cpus_per_client = {cpus_per_client}, gpus_per_client = {gpus_per_client}: no "
                "machine has room for one such client; allowed: less"
            ) from error
        except Exception as error:
            raise _not_started(error) from error
        pool = backend.pool
        assert pool is not None  # The backend is built.
        _replace_dead_actors(pool)

        grid = RayGrid(client_app, num_nodes, backend)
        try:
            yield grid
        finally:
            # Flower logs an error for every actor that dies, but these are killed on purpose.
            logging.getLogger("flwr").setLevel(logging.CRITICAL)
            grid.close(lambda: _kill_busy_actors(pool))
    finally:
        backend.terminate()


def _not_started(error: Exception) -> FedIFError:
    """Return the error that says in one line why Ray did not start."""
    words = " ".join(str(error).split())
    return FedIFError(
        f"Ray did not start: {words:.200}; it needs room in TMPDIR, and a machine that is not "
        "overloaded"
    )


def _new_backend(cpus_per_client: int, gpus_per_client: float) -> RayBackend:
    """Return Flower's Ray backend; it starts Ray, and has no actors before its ``build``."""
    # Imported here: the module imports Ray, which is not installed at clients of a deployment.
    from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend

    config: BackendConfig = {
        "client_resources": {"num_cpus": cpus_per_client, "num_gpus": gpus_per_client},
        "init_args": {
            # Without an address, Ray would join the cluster that `ray start` began here last.
            "address": "local",
            "log_to_driver": False,
            "logging_level": "error",
        },
    }
    with warnings.catch_warnings():
        # Ray warns that in a later version, clients without a share of a GPU may see GPUs.
        warnings.simplefilter("ignore", FutureWarning)
        return RayBackend(config)


def _kill_busy_actors(pool: BasicActorPool) -> None:
    """End the actors that still train: nothing waits for their answers any more."""
    import ray

    for actor in list(pool._future_to_actor.values()):
        ray.kill(actor)
