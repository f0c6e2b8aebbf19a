"""Reasons why a round makes no new model, and what happens to the model then."""

from __future__ import annotations

import logging
from typing import NamedTuple

from fedif_flower.messages.text import printable
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.noise import why_noise_is_too_small
from fedif_flower.server.record import Round

logger = logging.getLogger(__name__)


class Obstacle(NamedTuple):
    """Why a round makes no model, and whether the model that was sent may be the cause."""

    reason: str
    suspect: bool


def find_obstacle(current: Round, *, min_valid_replies: int, noise_for: int = 0) -> Obstacle | None:
    """Return why a round's screened replies cannot be weighed; ``None`` if they can.

    Parameters
    ----------
    current : Round
        The round, with its accepted and refused replies.
    min_valid_replies : int
        How many replies have to be accepted.
    noise_for : int
        The number of members for which a wrapper's noise is made (see
        :mod:`fedif_flower.server.noise`); 0 if no noise is added.
    """
    if current.is_models_fault:
        return Obstacle("most clients fail on this model", suspect=True)
    accepted = current.accepted
    if len(accepted) < min_valid_replies:
        # If a member's reply was refused and none was accepted, the model that members were sent
        # may be the cause. Late replies do not count here: they were trained on older models.
        refused = any(reply.status == "refused" for reply in current.refused_of_members)
        reason = f"{len(accepted)} valid replies, {min_valid_replies} needed"
        return Obstacle(reason, suspect=refused and not accepted)
    if noise_for:
        examples = [reply.num_examples for reply in accepted]
        too_small = why_noise_is_too_small(examples, noise_for)
        if too_small:
            return Obstacle(too_small, suspect=False)
    return None


def fail(current: Round, model: GlobalModel, obstacle: Obstacle) -> None:
    """Record that a round failed; keep the model, or take it back if it may be the cause.

    Parameters
    ----------
    current : Round
        The round's record.
    model : GlobalModel
        The global model.
    obstacle : Obstacle
        Why the round makes no new model.
    """
    current.status = "failed"
    current.reason = printable(obstacle.reason)
    logger.error("round %d: %s; the model stays as it was", current.round, current.reason)
    if obstacle.suspect:
        current.arrays = model.take_back()


def stand_still(
    current: Round, model: GlobalModel, updates: RoundUpdates, aggregation: Aggregation
) -> None:
    """Record that a round's accepted replies leave the model where it is.

    The status is ``"kept"`` if every update has weight 0, which the rule decided; otherwise
    ``"failed"``.

    Parameters
    ----------
    current : Round
        The round's record.
    model : GlobalModel
        The global model.
    updates : RoundUpdates
        The accepted replies.
    aggregation : Aggregation
        Their weights.
    """
    current.status = "failed"
    if aggregation.gives_nobody_weight:
        current.status = "kept"
    current.reason = _why_it_stands_still(updates, aggregation)
    current.arrays = model.record
    logger.warning("round %d: %s; the model stays as it was", current.round, current.reason)


def _why_it_stands_still(updates: RoundUpdates, aggregation: Aggregation) -> str:
    """Return words that say why a round's accepted replies leave the model where it is."""
    if aggregation.gives_nobody_weight:
        return "every accepted update has weight 0"
    if not bool(updates.squared_norms.any()):
        return "no accepted reply changes the model"
    return (
        "the accepted updates, as they were weighed, cancel each other or are too small to change "
        "the model"
    )
