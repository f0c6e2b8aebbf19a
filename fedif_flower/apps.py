"""Both halves of a Flower app, complete: ``app = server_app(task)``, ``app = client_app(task)``.

A ClientApp runs in a process of its own, often a new one for each message. To start quickly, it
does not import what only the server needs: :func:`server_app` imports that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedif_flower.client.app import task_app
from fedif_flower.errors import FedIFError
from fedif_flower.messages.instructions import round_of
from fedif_flower.messages.text import one_line
from fedif_flower.registry import parts_named
from fedif_flower.run.logs import about, show_logs

if TYPE_CHECKING:
    from flwr.serverapp import Grid, ServerApp

    from fedif_flower.client.app import ClientPart
    from fedif_flower.run.part import RunPart
    from fedif_flower.server.record import Round
    from fedif_flower.tasks.task import Task

logger = logging.getLogger(__name__)


def client_app(task: Task | None = None, parts: Sequence[ClientPart] | str = ()) -> ClientApp:
    """Return a complete ClientApp: a client's data, its behaviour, its training, its reply.

    Parameters
    ----------
    task : Task, optional
        What the clients learn. ``None``: the run config names a task.
    parts : sequence of ClientPart or str
        What a client does beside training, the outermost part first; or ``module:function`` that
        returns these parts. If the function's package is not installed, there are none.
    """
    client_parts = parts_named(parts) if isinstance(parts, str) else parts
    return task_app(task, mods=[_with_log], parts=client_parts or ())


def server_app(task: Task | None = None, parts: Sequence[RunPart] | str | None = None) -> ServerApp:
    """Return a complete ServerApp: run config -> federation -> records and report.

    It understands every key of ``docs/configuration.md``. On its command line, Flower accepts only
    the keys that the app's ``pyproject.toml`` lists under ``[tool.flwr.app.config]``; all others
    have their defaults.

    Parameters
    ----------
    task : Task, optional
        What the clients learn. ``None``: the run config names a task.
    parts : sequence of RunPart or str, optional
        The parts of a run beside its core, in the order in which they are built; or
        ``module:function`` that returns them. ``None``, or if the function's package is not
        installed: the library's own parts.
    """
    from flwr.serverapp import ServerApp

    from fedif_flower.run.ending import require_complete
    from fedif_flower.run.federation import run_federation
    from fedif_flower.run.folder import RunFolder
    from fedif_flower.run.parts import chosen_parts
    from fedif_flower.run.preflight import read_config_and_count_nodes
    from fedif_flower.tasks.config import OWN

    app = ServerApp()
    run_parts = chosen_parts(parts)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Run the federation that the run config describes."""
        show_logs()
        settings = dict(context.run_config)
        if task is not None:
            settings["task"] = OWN + task.name
        with _error_before_its_traceback():
            config = read_config_and_count_nodes(grid, settings, run_parts)
            logger.info("Flower's SuperLink runs in %s", Path.cwd())
            run_dir = run_federation(
                grid, config, _log_row, task=task, parts=run_parts, run_config=context.run_config
            )
            logger.info("Report: %s", RunFolder(run_dir).report)
            # Flower reports a run as failed only if its ServerApp raises.
            require_complete(run_dir)

    return app


@contextmanager
def _error_before_its_traceback() -> Iterator[None]:
    """Log an error of this package as one sentence, before Flower shows its traceback."""
    try:
        yield
    except FedIFError as error:
        logger.error("%s", one_line(error, 2000))
        raise


def _log_row(row: Round) -> None:
    """Log a round's headline, if its model was evaluated."""
    if row.headline:
        logger.info("round %d: %s", row.round, row.headline)


def _with_log(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message with the package's logs shown, in which run and round are named.

    Logs are set up for each message, since the process that answers may never have imported this
    module: Ray's actors do not.
    """
    show_logs()
    subject = {"run": context.run_id}
    server_round = round_of(message)
    if server_round:
        subject["round"] = server_round
    with about(**subject):
        return call_next(message, context)
