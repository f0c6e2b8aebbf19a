"""The protocol of server parts whose state a checkpoint keeps, and a strategy's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from flwr.app import ArrayRecord

from fedif_flower.stages import Stages
from fedif_flower.strategies.global_model import GlobalModel, require_shapes
from fedif_flower.strategies.scoring import Scoring
from fedif_flower.valuation import Validation
from fedif_flower.valuation.ledger import ScoreLedger

# Parts of strategies that are about one model, by name: lengths, losses, directions.
_OF_ONE_MODEL = ("stages", "rule")


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


class StatefulParts:
    """Keeps a strategy's state part by part; part of ``ScreenedStrategy``.

    A strategy that judges updates by a Validation has it as ``validation``.
    """

    model: GlobalModel
    stages: Stages

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds, by name."""
        return {}

    @property
    def scoring(self) -> Scoring | None:
        """How the scores come about that it reports as weight scores; ``None``: not smoothed."""
        ledger = self.stateful().get("ledger")
        return Scoring.of(ledger) if isinstance(ledger, ScoreLedger) else None

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the strategy's own copy of the model, by name; empty: it has none."""
        judge: Validation | None = getattr(self, "validation", None)
        return {} if judge is None else judge.shapes

    def begin(self, initial_arrays: ArrayRecord) -> None:
        """Take the model that a run begins with, before anybody is asked.

        What was learned of another model in an earlier run is forgotten; clients' scores are not.

        Raises
        ------
        ConfigError, ValueError
            If the model cannot be averaged, is not the one that the strategy was given, or differs
            from that of an earlier run in names, shapes or types.
        """
        if own := self.own_shapes:
            require_shapes(type(self).__name__, own, initial_arrays)
        self.stages.begin(getattr(self, "validation", None))
        parts = self.stateful()
        self.model.begin(initial_arrays, [parts[k] for k in _OF_ONE_MODEL if k in parts])

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the model needed to go on."""
        return {name: part.state_dict() for name, part in self.stateful().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; set ``completed_rounds`` as well."""
        for name, part in self.stateful().items():
            part.load_state_dict(state[name])
