"""Flower's wrappers for central differential privacy: whether what they assume is so.

A wrapper shortens updates to a length C, lets the strategy combine them, and adds noise of standard
deviation z C / m to the new model, with m its ``num_sampled_clients``. That hides one member where
none counts for more than 1 / m, whatever is sent: the noise has to be z times the sensitivity,
which is C times the largest weight. Flower's own ``FedAvg`` weighs by examples, and its wrappers
look at that only where they have an accountant.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedif_flower.errors import ConfigError

NoiseWrapper = (
    DifferentialPrivacyServerSideFixedClipping
    | DifferentialPrivacyClientSideFixedClipping
    | DifferentialPrivacyServerSideAdaptiveClipping
    | DifferentialPrivacyClientSideAdaptiveClipping
)
_HANDED_ON = ("summary", "configure_train", "aggregate_train")  # By a wrapper to what it wraps.


def calling_wrapper() -> NoiseWrapper | None:
    """Return the wrapper by which this is called, if there is one.

    A wrapper tells the strategy that it holds nothing of itself, and leaves no trace in what it
    hands on. So the frames are asked who calls; strategies between the two, whoever wrote them,
    make no difference. A wrapper whose own loop is further out, as of a federation of federations
    in one process, calls other methods.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, NoiseWrapper) and frame.f_code.co_name in _HANDED_ON:
            return caller
        frame = frame.f_back
    return None


def require_equal_weights(wrapper: NoiseWrapper, why_not: str) -> None:
    """Raise ConfigError where members may count for more than a wrapper's noise is made for.

    Parameters
    ----------
    wrapper : NoiseWrapper
        Adds the noise.
    why_not : str
        Why weights may differ; empty: they do not.
    """
    if why_not:
        raise ConfigError(
            f"{type(wrapper).__name__} adds noise for members that count for "
            f"1/{wrapper.num_sampled_clients} each, but {why_not}: the sensitivity is the largest "
            "weight; allowed: FedAvg or FedProx without stages, of members with equal examples, or "
            "noise that each member adds itself, such as Flower's LocalDpMod"
        )


def why_noise_is_too_small(examples: Sequence[float], num_clients: int) -> str:
    """Return why a mean by examples has a member that counts for more than 1 / num_clients.

    Parameters
    ----------
    examples : sequence of float
        What each of the round's members counts for.
    num_clients : int
        The m that the noise is made for.
    """
    if len(set(examples)) > 1:
        return (
            f"members report from {min(examples):g} to {max(examples):g} examples, and the noise "
            "that is added is for equal weights"
        )
    if len(examples) < num_clients:
        return (
            f"{len(examples)} replies are usable, and the noise that is added is for {num_clients}"
        )
    return ""
