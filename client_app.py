"""Door 2, the ClientApp that ``pyproject.toml`` names: the package's own, its log shown."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedif_flower.client.app import query, train
from fedif_flower.run.logs import show_logs


def with_log(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Show what the package logs, in whatever process answers: Ray's actors do not import this."""
    show_logs()
    return call_next(message, context)


app = ClientApp(mods=[with_log])
app.query()(query)
app.train()(train)
