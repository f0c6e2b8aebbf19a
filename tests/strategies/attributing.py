"""A loss that is worked out by hand, and rounds whose decrease of it is attributed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedif_flower import FedAvg, PathAttribution, Validation
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.strategies.attributed import RoundAttribution
from fedif_flower.strategies.callbacks import Callback
from tests.strategies.hostile import Clients
from tests.strategies.lines import Movers, point
from tests.tolerance import rounding

ROUNDING = rounding(torch.float32)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def validation(kind=Validation, loss_fn=squared, target=(4.0, 2.0)) -> Validation:
    """Loss (x - 4)^2 / 2 + (y - 2)^2 / 2 of two parameters (x, y): 10 at the start."""
    targets = torch.tensor(target)[:, None]
    return kind(point(), torch.eye(2), targets, loss_fn=loss_fn, device="cpu")


def attributed(
    strategy_of,
    movers: Movers | Clients,
    rounds: int = 1,
    rule: str = "trapezoid",
    *,
    held_out: Validation | None = None,
    model: nn.Module | None = None,
    beside: tuple[Callback, ...] = (),
    setup: dict | None = None,
    **options,
) -> PathAttribution:
    """Run rounds of ``strategy_of(held_out, **base)``; return what was attributed."""
    held_out = held_out or validation()
    callback = PathAttribution(held_out, rule, **options)
    names = {"trainable_keys": held_out.parameter_names} | (setup or {})
    base = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu", **names)}
    strategy = strategy_of(held_out, callbacks=[callback, *beside], **base)
    grid = LocalGrid(movers, len(getattr(movers, "steps", [0, 0, 0])))
    strategy.start(grid, model_arrays(model or point()), num_rounds=rounds)
    return callback


def fedavg(held_out: Validation, **base) -> FedAvg:
    return FedAvg(**base)


def values(found: RoundAttribution) -> list[float]:
    return [client.contribution for client in found.clients]
