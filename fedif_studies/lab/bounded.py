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
    base = parts.base.copy()
    first: list[Stage] = [] if bounds == "none" else [Clip(2.0)]
    if bounds in ("own", "full"):
        steps = DESCENT_STEPS if bounds == "full" else 0
        first.append(LossBound(parts.validation, descent_steps=steps))
    base["stages"] = [*first, *(base["stages"] or ())]
    return build_named(_known(weights), replace(parts, base=base))


def bounds_of(weights: str) -> tuple[str, str]:
    """Return no bounds, and the most that go with a rule: without weights there is no step."""
    return ("none", "full" if can_be_attributed(weights) else "length")


def can_be_attributed(weights: str) -> bool:
    """Tell whether a rule gives updates coefficients."""
    return gives_coefficients(_known(weights))


def _known(weights: str) -> str:
    """Return by what name a run config knows a rule."""
    return NAMES.get(weights, weights)
