"""What simulated clients remember of their rounds, for local methods and attacks that need it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol, runtime_checkable

from flwr.app import ArrayRecord, Context

from fedif_flower.attacks import build_behaviour
from fedif_flower.local_methods import build_local_method
from fedif_flower.messages.instructions import MEMORIES, memory_key
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.run.last_rounds import LastRounds
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.part import Built, PartState, RunContext, RunPart
from fedif_flower.server.run import Callback, RunningStrategy

logger = logging.getLogger(__name__)

Memory = Mapping[str, ArrayRecord]  # What a client remembers, by kind: "attack" or "method".


@runtime_checkable
class HoldsContexts(Protocol):
    """A grid that holds the state of every node in this process, by node id."""

    contexts: MutableMapping[int, Context]


class ClientMemory(RunPart):
    """Puts what simulated clients remember into checkpoints, where the server can see it."""

    def build(self, run: RunContext) -> Built:
        """Return what keeps clients' memories; warn if a run is resumed without them."""
        names = remembering(run.loaded)
        if isinstance(run.grid, HoldsContexts):
            memory = ClientMemoryState(run.grid.contexts, run.config.digest(), names)
            return Built(callbacks=[memory], state={"client-memory": memory})
        if run.checkpoint is not None:
            _warn(names, "real nodes and Flower's own simulation keep it with the run that stopped")
        return Built()


def remembering(loaded: LoadedTask) -> list[str]:
    """Return the settings whose attack or local method remembers rounds, as ``key = value``.

    An attack or a local method of a user's own counts, since it may remember rounds.
    """
    config = loaded.config
    names = []
    registries = type(config).registries
    acting = build_behaviour(config, partition_id=0, seed=config.seed)
    if acting.remembers or registries["attack"].is_own(config.attack):
        names.append(f"attack = {config.attack!r}")
    method = build_local_method(config, loaded.task, config.seed)
    if method.remembers or registries["local_method"].is_own(config.local_method):
        names.append(f"local-method = {config.local_method!r}")
    return names


class ClientMemoryState(Callback, PartState):
    """What clients remembered after the last two rounds.

    Parameters
    ----------
    contexts : mapping of int to Context
        The nodes' contexts, by node id.
    run : str
        The run's name in the states of clients: a digest of its settings.
    names : sequence of str
        The settings that :func:`remembering` returned, for a warning.
    """

    def __init__(
        self, contexts: MutableMapping[int, Context], run: str, names: Sequence[str]
    ) -> None:
        self._contexts = contexts
        self._names = names
        self._keys = {kind: memory_key(kind, run) for kind in MEMORIES}
        self._last: LastRounds[dict[int, Memory]] = LastRounds()  # Memories by node id.
        self._restored = False

    def restore(
        self,
        lines: object,  # noqa: ARG002
        memory: Mapping[str, Any] | None,
        last_round: int,
    ) -> None:
        """Take over what clients remembered; ``on_start`` gives it to them."""
        if memory is None:
            _warn(self._names, "the checkpoint is of a version that did not keep it")
            return
        by_node: dict[int, Memory] = {}
        for node_id, tensors_by_kind in memory.items():
            by_node[int(node_id)] = {
                kind: tensor_arrays(tensors) for kind, tensors in tensors_by_kind.items()
            }
        self._last.restore(last_round, by_node)
        self._restored = True

    def on_start(self, strategy: RunningStrategy) -> None:
        """Let clients go on with what they remembered; in a new run they remember nothing."""
        for context in list(self._contexts.values()):
            for key in self._keys.values():
                context.state.pop(key, None)
        for by_node in self._last.all():
            for node_id, memory in by_node.items():
                for kind, record in memory.items():
                    self._contexts[node_id].state[self._keys[kind]] = record
        # The server's half of a local method may go on only if the clients' half does.
        if self._restored:
            strategy.intake.go_on()

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        """Note what clients remember after a round.

        Nothing is copied: clients replace their records, and do not change them.
        """
        by_node: dict[int, Memory] = {}
        # The list is a copy: nodes that are late work on meanwhile, and may add contexts.
        for node_id, context in list(self._contexts.items()):
            records = self._records_in(context)
            if records:
                by_node[node_id] = records
        self._last.add(server_round, by_node)

    def _records_in(self, context: Context) -> Memory:
        """Return the records of this run in a node's state, by kind."""
        records = {}
        for kind, key in self._keys.items():
            record = context.state.get(key)
            if isinstance(record, ArrayRecord):
                records[kind] = record
        return records

    def memory(self, last_round: int) -> dict[str, Any]:
        """Return what clients remembered after a round, by node id."""
        by_node = self._last.latest(last_round) or {}
        memory = {}
        for node_id, records in by_node.items():
            memory[str(node_id)] = {
                kind: record.to_torch_state_dict() for kind, record in records.items()
            }
        return memory


def _warn(names: Sequence[str], why: str) -> None:
    """Warn that clients begin without their memories, and why; say nothing if there are none."""
    if names:
        logger.warning(
            "%s: what clients keep of their rounds is lost, so the resumed run differs from one "
            "without a stop: %s",
            " and ".join(names),
            why,
        )
