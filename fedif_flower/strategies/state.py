"""The protocol of server parts whose state a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


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


class StatefulParts:
    """Keeps a strategy's state part by part; part of ``ScreenedStrategy``."""

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the model needed to go on."""
        return {name: part.state_dict() for name, part in self.stateful().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; set ``completed_rounds`` as well."""
        for name, part in self.stateful().items():
            part.load_state_dict(state[name])
