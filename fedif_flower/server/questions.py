"""How a round asks its members: the messages that it sends, and how long it waits for replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedif_flower.intake.pace import Pace
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.polling_grid import Closing
from fedif_flower.messages.workspace import Question
from fedif_flower.round import ModelVectors
from fedif_flower.server.record import Round

logger = logging.getLogger(__name__)

# Returns the records that one node's message holds beside the model and the settings, by name.
Enclose = Callable[[ClientNode], Mapping[str, ConfigRecord | ArrayRecord]]


class Patience:
    """Says when each round stops waiting; warns once if a round has fewer members than the quorum.

    Parameters
    ----------
    pace : Pace
        The settings: how long a round waits.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._has_warned = False

    def closing(self, num_members: int, earlier: Mapping[int, Question]) -> Closing:
        """Return when a round stops waiting for replies.

        Parameters
        ----------
        num_members : int
            How many members the round asks.
        earlier : mapping of int to Question
            The unanswered questions of earlier rounds whose replies still count, by node.
        """
        quorum = self._pace.quorum
        at_work = num_members + len(earlier)
        if quorum > at_work > 0 and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "quorum = %g, but only %d members are asked or at work: such a round waits for all "
                "of them",
                quorum,
                at_work,
            )
        return self._pace.closing(num_members, earlier)


def note_questions(current: Round, sent: ModelVectors, earlier: Mapping[int, Question]) -> None:
    """Note in a round's record which members are asked, with which model, and when.

    Parameters
    ----------
    current : Round
        The round, with its members.
    sent : ModelVectors
        The model that the members are sent.
    earlier : mapping of int to Question
        The unanswered questions of earlier rounds whose replies still count, by node.
    """
    current.asked_at = time.perf_counter()
    questions = {
        node.node_id: Question(node, sent, current.asked_at, current.round)
        for node in current.members
    }
    current.asked = {**questions, **earlier}


def content_for(node: ClientNode, content: RecordDict, enclosing: Sequence[Enclose]) -> RecordDict:
    """Return the content of the message that asks a member to train.

    Parameters
    ----------
    node : ClientNode
        The member.
    content : RecordDict
        The model and the settings, the same for all members.
    enclosing : sequence of callable
        Each returns further records for the member. If two return a record of the same name, the
        later one is sent.
    """
    enclosed: dict[str, ConfigRecord | ArrayRecord] = {}
    for enclose in enclosing:
        enclosed |= enclose(node)
    if not enclosed:
        return content
    return RecordDict({**content, **enclosed})
