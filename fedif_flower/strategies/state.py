"""The protocol of server parts whose state a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

NODE_ID = "node_id"


class Stateful(Protocol):
    """A part that remembers earlier rounds.

    Its state is made of dicts, lists, numbers, strings, ``None`` and tensors, so that it can be
    read back without running code. An integer key of a dict is a node id, and so is what stands
    under ``"node_id"``: see :func:`rename_nodes`.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on; later rounds do not change it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        ...


def rename_nodes(state: Any, names: Mapping[int, int]) -> Any:
    """Return a copy of a state in which nodes have new ids.

    Parameters
    ----------
    state : Any
        See :class:`Stateful`.
    names : mapping of int to int
        New ids by old ones; nodes that are not in it keep theirs.
    """
    if isinstance(state, Mapping):
        renamed = {}
        for key, value in state.items():
            if key == NODE_ID:
                renamed[key] = names.get(value, value)
            else:
                new = names.get(key, key) if isinstance(key, int) else key
                renamed[new] = rename_nodes(value, names)
        return renamed
    if isinstance(state, list):
        return [rename_nodes(value, names) for value in state]
    return state
