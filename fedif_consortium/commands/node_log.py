"""``fedif node log``: what a member's own node let in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

log_cli = typer.Typer(add_completion=False)


@log_cli.command("log")
def node_log(
    folder: Annotated[Path, typer.Argument(help="of the log, as [log] of the policy names it")],
    head: Annotated[
        str, typer.Option(help="a last hash that you wrote down: the log must have gone on from it")
    ] = "",
) -> None:
    """Check that a node's log is whole, and show it: a JSON object for each message."""
    from fedif_consortium.member.node_log import read_node_log

    found = read_node_log(folder)
    after = found.lines_after(head) if head else None
    for entry in found.entries:
        typer.echo(json.dumps(entry))
    typer.echo(f"Whole: {len(found.entries)} lines, the last hash is {found.head}", err=True)
    if after is not None:
        typer.echo(f"The log goes on from that hash: {after} lines since.", err=True)
