"""Checks that Flower's wrappers for central differential privacy add enough noise.

A wrapper clips updates to a length C, lets the strategy combine them, and adds noise of standard
deviation z C / m to the new model, with z its noise multiplier and m its ``num_sampled_clients``.
The noise has to be z times the sensitivity, which is C times the largest weight. So it hides a
member only if no member's weight can exceed 1 / m, whatever members send. Flower's own ``FedAvg``
weighs by examples, and the wrappers check for equal weights only if they have an accountant.
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
# The methods in which a wrapper calls the method of the same name of the strategy that it wraps.
_HANDED_ON = ("summary", "configure_train", "aggregate_train")


def calling_wrapper() -> NoiseWrapper | None:
    """Return the wrapper that calls the strategy, if there is one.

    A wrapped strategy has no reference to its wrapper, and its arguments show no trace of it. So
    this function looks for the wrapper among the callers, on the stack of frames. There may be
    other strategies between the two. Only frames of the methods that a wrapper hands on count:
    if a whole federation runs inside a client of a wrapped one, in the same process, the frames of
    the outer wrapper are those of other methods.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, NoiseWrapper) and frame.f_code.co_name in _HANDED_ON:
            return caller
        frame = frame.f_back
    return None


def require_equal_weights(wrapper: NoiseWrapper, why_not: str) -> None:
    """Raise ConfigError if members may have larger weights than a wrapper's noise allows.

    Parameters
    ----------
    wrapper : NoiseWrapper
        The wrapper that adds the noise.
    why_not : str
        Why the weights of members may differ; empty if they cannot.
    """
    if why_not:
        raise ConfigError(
            f"{type(wrapper).__name__} adds noise for members with weights of at most "
            f"1/{wrapper.num_sampled_clients}, but {why_not}: a member may have a larger weight, "
            "and the noise would not hide it; allowed: FedAvg or FedProx without stages, of "
            "members with equal examples, or noise that each member adds itself, such as Flower's "
            "LocalDpMod"
        )


def why_noise_is_too_small(examples: Sequence[float], num_clients: int) -> str:
    """Return why a member may have a weight above ``1 / num_clients``; empty if none has.

    Parameters
    ----------
    examples : sequence of float
        The examples by which each of the round's accepted replies is weighed.
    num_clients : int
        The number m of members that the noise is made for.
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
