"""``flower-superlink`` with what no proxy can do: a member answers for itself, within bounds.

Flower 1.41 serves everything on one port, and only SuperNodes have to prove who they are. Whoever
reaches that port may also submit a run, that is, execute code on the server and on every node. So
the port is for this host alone, and members reach it by a proxy
(:mod:`~fedif_consortium.superlink.proxy`). Here, a large request is read once it is known to be
signed (:mod:`~fedif_consortium.superlink.signed_requests`), and what a SuperNode sends is its own
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

BUDGET = "FEDIF_REPLY_BUDGET"
MOST_BUDGET = 10**6  # No limit any more; what it is multiplied by stays a number.
CERTIFICATE = "FEDIF_SERVER_CERTIFICATE"  # Whose days are among the figures.
REMOVED = "FEDIF_REMOVED_MEMBERS"  # The list of those who are let in no more.
UNLISTED = "FEDIF_REMOVED_KEYS"  # Ids of such keys that could not be written into that list.


def reply_budget(text: str) -> float:
    """Return how many times the heaviest message of its run a reply may weigh.

    Members that answer a float32 model in float64 need 2, and masked rounds do.
    """
    try:
        budget = float(text or 1.0)
    except ValueError:
        budget = 0.0
    require(1 <= budget <= MOST_BUDGET, BUDGET, text, f"a number >= 1 and <= {MOST_BUDGET}")
    return budget


def wait_for_database() -> None:
    """Let SQLite wait a minute for a lock: after Flower's 5 s a busy host's error ends a run."""
    pragmas = (*vars(sql_mixin)["SQLITE_PRAGMAS"], ("busy_timeout", "60000"))
    setattr(sql_mixin, "SQLITE_PRAGMAS", pragmas)  # noqa: B010  # a constant of Flower


def _path_in(variable: str) -> Path | None:
    """Return the path that a variable of the environment names; ``None``: it names none."""
    path = os.environ.get(variable)
    if not path:
        return None
    return Path(path)


def keys_not_let_in() -> frozenset[str]:
    """Return the ids of the keys that nobody is let in with, as the environment tells them."""
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

    # Flower has no hook of its own for this.
    uvicorn.run = run_guarded
    flower_superlink()


if __name__ == "__main__":
    main()
