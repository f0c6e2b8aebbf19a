"""``fedif node``: what a member does on its own host."""

from __future__ import annotations

import typer

from fedif_flower.commands.node_join import join_cli

node_cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A member's own host: joining a federation, and starting the node.",
)
node_cli.add_typer(join_cli)
