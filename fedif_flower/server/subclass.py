"""What a subclass's own ``configure_train`` and ``aggregate_train`` have to return."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flwr.app import ArrayRecord, Message

from fedif_flower.errors import ConfigError, ReplyError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.text import enumerated
from fedif_flower.server.model import GlobalModel


def require_messages(
    method: str, messages: Sequence[Message], members: Collection[ClientNode]
) -> None:
    """Raise ConfigError unless a round's messages go to those who were drawn for it.

    Who is drawn and never asked would count as away; who is asked and was not drawn counts for
    nothing.

    Parameters
    ----------
    method : str
        What returned the messages, for errors.
    messages : sequence of Message
        By which the round's members are asked to train.
    members : collection of ClientNode
        Who was drawn; empty: nobody.
    """
    drawn = {node.node_id: node for node in members}
    asked_ids = {message.metadata.dst_node_id for message in messages}
    if asked_ids == drawn.keys():
        return
    if not drawn:
        raise ConfigError(
            f"{method} asks {len(asked_ids)} clients, and none was drawn: it has to call "
            "super().configure_train, and return messages to those whom that has drawn"
        )
    missing = [node.label for node_id, node in drawn.items() if node_id not in asked_ids]
    others = [f"node {node_id}" for node_id in sorted(asked_ids - drawn.keys())]
    wrong = "does not ask " + enumerated(missing) if missing else "asks " + enumerated(others)
    raise ConfigError(
        f"{method} {wrong}; allowed: a message to each of the {len(drawn)} that were drawn, and "
        "to no other (select decides who is drawn)"
    )


def take_model(method: str, arrays: object, model: GlobalModel) -> None:
    """Go on from the model that a round has led to.

    Parameters
    ----------
    method : str
        What returned the model, for errors.
    arrays : object
        The model that it returned.
    model : GlobalModel
        The run's, which takes it over.

    Raises
    ------
    ConfigError
        If it is no model of this run.
    """
    if not isinstance(arrays, ArrayRecord):
        raise ConfigError(
            f"{method} returned a model of type {type(arrays).__name__}; allowed: an ArrayRecord, "
            "or None where the old model stays"
        )
    try:
        model.receive(arrays)
    except (ReplyError, ValueError) as error:
        raise ConfigError(f"{method} returned no model of this run: {error}") from error
