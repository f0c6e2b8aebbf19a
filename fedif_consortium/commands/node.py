"""``fedif node``: what a member does on its own host."""

from __future__ import annotations

import typer

from fedif_consortium.commands.node_check import check_cli
from fedif_consortium.commands.node_join import join_cli
from fedif_consortium.commands.node_log import log_cli

node_cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A member's own host: joining a federation, what may leave, and what went in and out.",
)
node_cli.add_typer(join_cli)
node_cli.add_typer(check_cli)
node_cli.add_typer(log_cli)
