"""A member's side of statements: its node keeps the page that says what it contributed."""

from __future__ import annotations

from flwr.app import Context, Message

from fedif_flower.client.app import ClientPart

ACTION = "statement"  # Messages of type ``query.statement``.


def _keep(message: Message, context: Context) -> Message:
    from fedif_consortium.statement.member_pages import keep_statement

    return keep_statement(message, context)


class KeptStatements(ClientPart):
    """Keeps the statements that a server delivers, if the node config names a folder for them."""

    queries = {ACTION: _keep}  # noqa: RUF012
