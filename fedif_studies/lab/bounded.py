"""A strategy that gives any other strategy the same bounds, whatever its own defaults are."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.settings import Setting
from fedif_flower.stages import Clip, LossBound, Stage
from fedif_flower.stages.loss_bound import DESCENT_STEPS
from fedif_flower.strategies.registry import StrategyParts, build_named, gives_coefficients
from fedif_studies.names import NAMES

RULE = f"{__name__}:rule"  # The strategy's name in a run config.


def rule(
    parts: StrategyParts,
    weights: Annotated[str, Setting("a strategy's name")] = "fedavg",
    bounds: Annotated[
        Literal["none", "length", "own", "full"], Setting("on lengths and loss")
    ] = "none",
) -> ScreenedStrategy:
    """Return a named strategy with these bounds on updates and steps.

    ``length`` clips updates at twice their usual length (:class:`Clip`). ``own`` also bounds the
    validation loss after a step, by a :class:`LossBound` that tries shorter steps. The
    :class:`LossBound` of ``full`` tries a step by other weights too.
    """
    stages: list[Stage] = []
    if bounds != "none":
        stages.append(Clip(2.0))
    if bounds == "own":
        stages.append(LossBound(parts.validation, descent_steps=0))
    elif bounds == "full":
        stages.append(LossBound(parts.validation, descent_steps=DESCENT_STEPS))
    base = parts.base.copy()
    base["stages"] = [*stages, *(base["stages"] or ())]
    return build_named(_configured_name(weights), replace(parts, base=base))


def bounds_of(weights: str) -> tuple[str, str]:
    """Return ``"none"`` and the strictest bounds that a rule can have.

    ``"full"`` needs a rule that gives updates weights. For any other rule, ``"length"`` is the
    strictest.
    """
    if can_be_attributed(weights):
        return ("none", "full")
    return ("none", "length")


def can_be_attributed(weights: str) -> bool:
    """Tell whether a rule's step is a sum of updates with coefficients, as attribution needs."""
    return gives_coefficients(_configured_name(weights))


def _configured_name(weights: str) -> str:
    """Return a rule's name in a run config."""
    return NAMES.get(weights, weights)
