"""The strategy that runs any robust rule."""

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
    """Let a robust rule make one step of a round's screened updates.

    Parameters
    ----------
    rule : callable
        A rule of :mod:`fedif_flower.aggregators`, such as ``Median()``, or of your own. It is
        called with the round's :class:`~fedif_flower.round.RoundUpdates`. If its attribute
        ``gives_weights`` is true, it returns an :class:`~fedif_flower.round.Aggregation` with
        weights ``[m]``; otherwise the step ``[d]`` by which the parameters move. With a step,
        buffers are averaged, and the clients' weights are NaN. The notes list the other attributes
        that a rule may have.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).

    Notes
    -----
    A rule may have these attributes besides:

    - ``state_dict`` and ``load_state_dict``: what it remembers of earlier rounds, for checkpoints.
    - ``take_back``: a method that forgets the last step, if the rule remembers it.
    - ``require_updates``: a method that is given a number of updates and words for an error; it
      raises ConfigError if they are too few.
    - ``knows_clients``: true if it remembers clients by their ids. It then cannot weigh groups.
    - ``sets_lengths``: true if its weights have a ``rescaling``, which brings updates to another
      length.
    - ``chooses_one``: true if it gives the weight 1 to a single client whose model is to be copied
      bit for bit. The round's models are then kept beside the updates.
    - ``parameter_names``, ``tied_names`` and ``own_shapes``: names and shapes of the arrays of the
      rule's own copy of the model, as :class:`~fedif_flower.aggregators.DeepSight` has one. The
      updates that it gets are then those of these parameters. ``own_shapes`` may be missing.

    Examples
    --------
    >>> strategy = RobustRule(Median(), fraction_train=0.5)      # doctest: +SKIP
    """

    said_by = "the rule's gives_weights"  # For errors; see ScreenedStrategy.

    def __init__(self, rule: Rule, **base: Unpack[BaseArguments]) -> None:
        fits = callable(rule) and not isinstance(rule, type)
        require(fits, "rule", rule, "a callable, such as Median()")
        self.takes_groups = not getattr(rule, "knows_clients", False)
        if hasattr(rule, "parameter_names"):
            # A rule with a model of its own needs the updates of that model's parameters.
            base = with_names_of(rule, base)
        super().__init__(**base)
        self.rule = rule
        self.combines_updates = bool(getattr(rule, "gives_weights", False))
        self.sets_lengths = bool(getattr(rule, "sets_lengths", False))
        self.chooses_one = bool(getattr(rule, "chooses_one", False))
        if self.stages.choosing is not None and not self.combines_updates:
            stage = type(self.stages.choosing).__name__
            raise ConfigError(
                f"stages = {self.stages}: {stage} chooses among steps by weights, and {rule!r} "
                "returns a step without weights; leave the stage out"
            )

    @property
    def own_shapes(self) -> Mapping[str, Sequence[int]]:
        """The shapes of the rule's own copy of the model, by name; empty if it has none."""
        shapes: Mapping[str, Sequence[int]] = getattr(self.rule, "own_shapes", {})
        return shapes

    def require_updates(self, count: int, allowed: str) -> int:
        """Return how many updates the rule gets if a round closes with ``count`` of them.

        Raises
        ------
        ConfigError
            If they are too few for a stage or for the rule; ``allowed`` completes the message.
        """
        num_weighed = super().require_updates(count, allowed)
        if num_weighed < count:
            allowed = f"at most {num_weighed} groups of {count} updates"
        if hasattr(self.rule, "require_updates"):
            self.rule.require_updates(num_weighed, allowed)
        return num_weighed

    def stateful(self) -> dict[str, Stateful]:
        """Return the parts that remember earlier rounds, the rule among them if it does."""
        parts = super().stateful()
        return parts | ({"rule": self.rule} if isinstance(self.rule, Stateful) else {})

    def take_back(self) -> None:
        """Let stages, intake and rule forget the last step, just before the model goes back."""
        super().take_back()
        if hasattr(self.rule, "take_back"):
            self.rule.take_back()

    def weigh(self, updates: RoundUpdates) -> Aggregation | Tensor:
        """Return the rule's answer: an Aggregation with weights ``[m]``, or a step ``[d]``."""
        return self.rule(updates)
