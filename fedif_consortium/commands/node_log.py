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
    from fedif_consortium.evidence.chained_log import START
    from fedif_consortium.member.node_log import lines_after, read_node_log

    entries = read_node_log(folder)
    after = lines_after(entries, head) if head else None
    for entry in entries:
        typer.echo(json.dumps(entry))
    last = entries[-1]["hash"] if entries else START
    typer.echo(f"Whole: {len(entries)} lines, the last hash is {last}", err=True)
    if after is not None:
        typer.echo(f"The log goes on from that hash: {after} lines since.", err=True)
