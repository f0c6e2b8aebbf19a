"""The protocol of server parts whose state a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """A part that remembers earlier rounds.

    Its state is made of dicts, lists, numbers, strings, ``None`` and tensors, so that it can be
    read back without running code. Clients are named in it by their lasting ``client_id`` (see
    :class:`~fedif_flower.messages.client_node.ClientNode`).
    """

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on; later rounds do not change it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        ...
