"""The server's half of a local method that sends a vector beside the model, as SCAFFOLD does."""

from __future__ import annotations

from flwr.app import RecordDict
from torch import Tensor

from fedif_flower.local_methods import LocalMethod
from fedif_flower.messages.instructions import VECTOR_RECORD
from fedif_flower.messages.screening import Workspace
from fedif_flower.messages.vector_workspace import VectorWorkspace, vector_record


class LocalVector:
    """Keeps the vector ``[d]``, 0 at first; without one in the method it does nothing.

    Parameters
    ----------
    method : LocalMethod
        Says whether there is one, and how it moves.
    """

    def __init__(self, method: LocalMethod) -> None:
        self._method = method
        self._value: Tensor | None = None

    @property
    def travels(self) -> bool:
        """Whether there is a vector."""
        return self._method.sends_vector

    def enclose(self, content: RecordDict, params: Tensor) -> None:
        """Put the vector into a message beside the model, whose parameters are ``params`` [d]."""
        if self.travels:
            if self._value is None:
                self._value = params.new_zeros(params.shape)
            content[VECTOR_RECORD] = vector_record(self._value)

    def advance(self, workspace: Workspace, accepted: int, members: int) -> None:
        """Move the vector by what a round's accepted replies sent."""
        if isinstance(workspace, VectorWorkspace) and self._value is not None:
            share = accepted / max(accepted, members)
            changes = workspace.vectors[:accepted]
            self._value = self._method.moved(self._value, changes, share)

    def restart(self) -> None:
        """Begin with 0 again: with a run, and where a model was taken back.

        No checkpoint keeps it: clients lose their half with the process that ran them.
        """
        self._value = None
