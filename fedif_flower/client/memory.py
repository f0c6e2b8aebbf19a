"""What a client keeps between its rounds: in the node's state, where Flower keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedif_flower.messages.models import tensor_arrays


@contextmanager
def node_memory(state: RecordDict, kind: str, run: str) -> Iterator[dict[str, Tensor]]:
    """Lend a client its memory of one run, and keep what it holds afterwards.

    Parameters
    ----------
    state : RecordDict
        The node's state.
    kind : str
        Who remembers: ``"attack"`` or ``"method"``.
    run : str
        The run: a simulated node may work for several at a time.
    """
    key = f"{kind}-memory.{run}"
    record = state.get(key)
    memory = dict(record.to_torch_state_dict()) if isinstance(record, ArrayRecord) else {}
    before = dict(memory)
    yield memory
    if memory.keys() != before.keys() or any(memory[k] is not v for k, v in before.items()):
        state[key] = tensor_arrays(memory)
