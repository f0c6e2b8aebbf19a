"""All commands of the consortium, for a command line that has those of the library."""

from __future__ import annotations

import typer

from fedif_consortium.commands.app import app_cli
from fedif_consortium.commands.federation import federation_cli
from fedif_consortium.commands.inspect import inspect_cli
from fedif_consortium.commands.keeper import keeper_cli
from fedif_consortium.commands.node import node_cli
from fedif_consortium.commands.statement import statement_cli
from fedif_consortium.commands.verify import verify_cli
from fedif_consortium.commands.watch import watch_cli


def add_commands(cli: typer.Typer) -> None:
    """Add them."""
    cli.add_typer(app_cli, name="app")
    cli.add_typer(keeper_cli, name="keeper")
    cli.add_typer(federation_cli, name="federation")
    cli.add_typer(node_cli, name="node")
    cli.add_typer(statement_cli, name="statement")
    for commands in (watch_cli, inspect_cli, verify_cli):
        cli.add_typer(commands)
