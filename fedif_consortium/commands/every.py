"""All commands of the consortium, to be added to the library's command line.

The commands and their help are there without the extra ``consortium`` too. A command that is called
without it says what to install.
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
    """Add all commands of the consortium to ``cli``; each requires the extra before it starts."""
    for group in (app_cli, keeper_cli, federation_cli, node_cli, statement_cli):
        for added in group.registered_commands:
            if added.callback is not None:
                added.callback = needs_extra(added.callback)
        cli.add_typer(group)
    for command in (watch, runs, inspect, verify, replay):
        cli.command()(needs_extra(command))
