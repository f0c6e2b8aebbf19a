"""Robust rules on the screened base: any of them, by the instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from torch import Tensor

from fedif_flower.errors import ConfigError, require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.rule import Rule, Stateful
from fedif_flower.server.setup import BaseArguments, with_names_of


class RobustRule(ScreenedStrategy):
    """Screen and sort the replies, then let a robust rule make one step of the updates.

    Parameters
    ----------
    rule : callable
        One of :mod:`fedif_flower.aggregators`, such as ``Median()``, or of your own. It is called
        with the round's :class:`~fedif_flower.round.RoundUpdates` and returns either a step
        ``[d]``, along which the parameters move, or, if its attribute ``gives_weights`` is true, an
        :class:`~fedif_flower.round.Aggregation` with weights ``[m]``. Beside a step, buffers are
        averaged, and no client has a weight of its own: NaN. A rule with ``state_dict`` and
        ``load_state_dict`` is part of checkpoints; one that remembers the last step has a
        ``take_back`` that forgets it; one that remembers clients by their ids says so by an
        attribute ``knows_clients``. One whose weights have a ``rescaling``, since they bring
        updates to another length, says so by ``sets_lengths``. One that gives a single client the
        weight 1, and means its model to be copied bit for bit, says so by ``chooses_one``: the
        round's models are then kept beside the updates. One with a model of its own has that
        model's ``parameter_names`` and ``tied_names``, and may have its ``own_shapes``, as
        :class:`~fedif_flower.aggregators.DeepSight` has: what is trained is then what it looks at.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).

    Examples
    --------
    >>> strategy = RobustRule(Median(), fraction_train=0.5)      # doctest: +SKIP
    """

    said_by = "the rule's gives_weights"

    def __init__(self, rule: Rule, **base: Unpack[BaseArguments]) -> None:
        fits = callable(rule) and not isinstance(rule, type)
        require(fits, "rule", rule, "a callable, such as Median()")
        self.takes_groups = not getattr(rule, "knows_clients", False)
        if hasattr(rule, "parameter_names"):
            # Of a rule with a model of its own the updates have to be that model's.
            base = with_names_of(rule, base)
        super().__init__(**base)
        self.rule = rule
        self.combines_updates = bool(getattr(rule, "gives_weights", False))
        self.sets_lengths = bool(getattr(rule, "sets_lengths", False))
        self.chooses_one = bool(getattr(rule, "chooses_one", False))
        if self.stages.choosing is not None and not self.combines_updates:
            raise ConfigError(f"stages = {self.stages}; {rule!r} leaves no step to choose")

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the rule's own copy of the model, by name; empty: it has none."""
        shapes: Mapping[str, Sequence[int]] = getattr(self.rule, "own_shapes", {})
        return shapes

    def require_updates(self, count: int, allowed: str) -> int:
        """Return what the base does; raise ConfigError where it is too little for the rule, too."""
        num_weighed = super().require_updates(count, allowed)
        if num_weighed < count:
            allowed = f"at most {num_weighed} groups of {count} updates"
        if hasattr(self.rule, "require_updates"):
            self.rule.require_updates(num_weighed, allowed)
        return num_weighed

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds: the rule too, if it does."""
        parts = super().stateful()
        return parts | ({"rule": self.rule} if isinstance(self.rule, Stateful) else {})

    def take_back(self) -> None:
        """Do what the base does, and tell a rule that remembers the last step."""
        super().take_back()
        if hasattr(self.rule, "take_back"):
            self.rule.take_back()

    def weigh(self, updates: RoundUpdates) -> Aggregation | Tensor:
        """Return what the rule makes of a round: weights, or a step ``[d]``."""
        return self.rule(updates)
