"""``flower-superlink`` with checks that a proxy cannot make.

Flower 1.41 serves everything on one port, and only SuperNodes have to prove who they are. Whoever
reaches that port may also submit a run, and so execute code on the server and on every node.
Therefore the port is open to this host alone, and members reach it through a proxy
(:mod:`~fedif_consortium.superlink.proxy`).

The checks here need to know the members and the messages. A large request is read only if a
registered node signed its header (:mod:`~fedif_consortium.superlink.signed_requests`). A reply
counts only for the node that sends it, and its size is bounded
(:mod:`~fedif_consortium.superlink.reply_guard`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import uvicorn
from flwr.supercore import sql_mixin
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedif_consortium.health import VARIABLE, serving_health
from fedif_consortium.superlink.figures import federation_figures
from fedif_consortium.superlink.reply_guard import ReplyGuard
from fedif_consortium.superlink.signed_requests import SignedRequests, removed_keys
from fedif_flower.errors import FedIFError, require
from fedif_flower.run.logs import show_logs

# Environment variables.
BUDGET = "FEDIF_REPLY_BUDGET"  # See reply_budget.
# So large a budget limits nothing any more. "inf" is refused: limits are integers.
MOST_BUDGET = 10**6
CERTIFICATE = "FEDIF_SERVER_CERTIFICATE"  # Path of the certificate whose days are a figure.
REMOVED = "FEDIF_REMOVED_MEMBERS"  # Path of the list of removed members.
UNLISTED = "FEDIF_REMOVED_KEYS"  # Ids of removed keys that could not be written into that list.


def reply_budget(text: str) -> float:
    """Return the budget: a reply may weigh this many times the heaviest message of its run.

    Members that answer a float32 model in float64 need 2. Masked rounds need 2 as well.

    Parameters
    ----------
    text : str
        The environment variable's value; empty: 1.

    Raises
    ------
    ConfigError
        If ``text`` is not a number from 1 to 1,000,000.
    """
    try:
        budget = float(text or 1.0)
    except ValueError:
        budget = 0.0
    require(1 <= budget <= MOST_BUDGET, BUDGET, text, f"a number >= 1 and <= {MOST_BUDGET}")
    return budget


def wait_for_database() -> None:
    """Let SQLite wait a minute for a lock.

    Flower lets it wait for 5 s. On a busy host that can be too short, and the error ends a run.
    """
    pragmas = (*vars(sql_mixin)["SQLITE_PRAGMAS"], ("busy_timeout", "60000"))
    setattr(sql_mixin, "SQLITE_PRAGMAS", pragmas)  # noqa: B010  # a constant of Flower


def _path_in(variable: str) -> Path | None:
    """Return the path in an environment variable; ``None``: it is empty or not set."""
    path = os.environ.get(variable)
    if not path:
        return None
    return Path(path)


def keys_not_let_in() -> frozenset[str]:
    """Return the ids of removed keys: from the list of removed members, and those beside it.

    Environment variables say where the list is, and which keys could not be written into it.
    """
    unlisted = frozenset(os.environ.get(UNLISTED, "").split())
    removals = _path_in(REMOVED)
    if removals is None:
        return unlisted
    return removed_keys(removals) | unlisted


def main() -> None:
    """Run ``flower-superlink`` with its own arguments, guarded."""
    try:
        show_logs()
        guard = ReplyGuard(reply_budget(os.environ.get(BUDGET, "")))
        removed = keys_not_let_in()
    except FedIFError as error:
        sys.exit(f"error: {error}")
    guard.install(fleet_handlers, runtime_handlers)
    wait_for_database()
    serve = uvicorn.run

    def run_guarded(app: Any, **options: Any) -> None:
        try:
            state = app.state.linkstate_factory.state
            figures = federation_figures(state, _path_in(CERTIFICATE))
            with serving_health("superlink", os.environ.get(VARIABLE, ""), figures):
                serve(SignedRequests(app, state, removed), **options)
        except FedIFError as error:
            sys.exit(f"error: {error}")

    # Flower has no hook to wrap its ASGI application, so the function that serves it is replaced.
    uvicorn.run = run_guarded
    flower_superlink()


if __name__ == "__main__":
    main()
