"""Any rule of weights with the same bounds, whatever its own defaults are."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.settings import Setting
from fedif_flower.stages import Clip, LossBound, Stage
from fedif_flower.stages.loss_bound import DESCENT_STEPS
from fedif_flower.strategies.registry import StrategyParts, build_named, gives_coefficients
from fedif_studies.names import NAMES

RULE = f"{__name__}:rule"  # As a run config names it.


def rule(
    parts: StrategyParts,
    weights: Annotated[str, Setting("a strategy's name")] = "fedavg",
    bounds: Annotated[
        Literal["none", "length", "own", "full"], Setting("on lengths and loss")
    ] = "none",
) -> ScreenedStrategy:
    """Return a strategy with these bounds.

    ``length`` is a :class:`Clip`; ``own`` also a :class:`LossBound` that tries shares of the step;
    ``full`` one that tries other weights too.
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
    """Return no bounds, and the most that go with a rule: without weights there is no step."""
    if can_be_attributed(weights):
        return ("none", "full")
    return ("none", "length")


def can_be_attributed(weights: str) -> bool:
    """Tell whether a rule gives updates coefficients."""
    return gives_coefficients(_configured_name(weights))


def _configured_name(weights: str) -> str:
    """Return the name by which a run config knows a rule."""
    return NAMES.get(weights, weights)
