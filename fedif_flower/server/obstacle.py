"""Why a round makes no model of its replies."""

from __future__ import annotations

from typing import NamedTuple

from fedif_flower.server.noise import why_noise_is_too_small
from fedif_flower.server.record import Round


class Obstacle(NamedTuple):
    """Why a round makes no model, and whether the model that was sent is suspected of it."""

    reason: str
    suspect: bool


def find_obstacle(current: Round, *, min_valid_replies: int, noise_for: int = 0) -> Obstacle | None:
    """Return why a round's replies, which are screened, are not weighed; ``None``: they are.

    Parameters
    ----------
    current : Round
        The round, with its replies.
    min_valid_replies : int
        How many replies have to be usable.
    noise_for : int
        For how many members somebody else adds noise to the new model; 0: nobody does.
    """
    accepted = current.accepted
    if len(accepted) < min_valid_replies:
        # Where nonsense is all that came, the model that was sent may be why; what came late is
        # of an older model.
        refused = any(reply.status == "refused" for reply in current.refused_of_members)
        reason = f"{len(accepted)} valid replies, {min_valid_replies} needed"
        return Obstacle(reason, suspect=refused and not accepted)
    if noise_for:
        examples = [reply.num_examples for reply in accepted]
        too_small = why_noise_is_too_small(examples, noise_for)
        if too_small:
            return Obstacle(too_small, suspect=False)
    return None
