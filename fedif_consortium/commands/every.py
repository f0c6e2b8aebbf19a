"""All commands of the consortium, for a command line that has those of the library.

They are there, with their help, also where the extra ``consortium`` is not installed; called, each
says what to install.
"""

from __future__ import annotations

import typer

from fedif_consortium.commands.app import app_cli
from fedif_consortium.commands.federation import federation_cli
from fedif_consortium.commands.node import inspect, keeper_cli, node_cli
from fedif_consortium.commands.statement import replay, statement_cli, verify
from fedif_consortium.commands.watch import runs, watch
from fedif_consortium.extra import needs_extra


def add_commands(cli: typer.Typer) -> None:
    """Add them."""
    for group in (app_cli, keeper_cli, federation_cli, node_cli, statement_cli):
        for added in group.registered_commands:
            if added.callback is not None:
                added.callback = needs_extra(added.callback)
        cli.add_typer(group)
    for command in (watch, runs, inspect, verify, replay):
        cli.command()(needs_extra(command))
