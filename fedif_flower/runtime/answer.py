"""What a client's app returns, as the reply that it is taken for."""

from __future__ import annotations

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode


def reply_of(answer: object, message: Message) -> Message:
    """Return what a ClientApp answered a message with; an error where that is no message.

    A function that forgets its ``return`` answers ``None``.
    """
    if isinstance(answer, Message):
        return answer
    reason = (
        f"the ClientApp returned {type(answer).__name__}; allowed: a Message, as "
        "Message(content, reply_to=message)"
    )
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
