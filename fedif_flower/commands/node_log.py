"""``fedif node log``: what a member's own node let in and out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

log_cli = typer.Typer(add_completion=False)


class Decision(StrEnum):
    """What a line of the log may say."""

    passed = "passed"
    refused = "refused"


@log_cli.command("log")
def node_log(
    folder: Annotated[Path, typer.Argument(help="of the log, as [log] of the policy names it")],
    run: Annotated[int | None, typer.Option(help="messages of this run alone, by its id")] = None,
    day: Annotated[str, typer.Option(help="of this day or month alone (UTC): 2026-11-23")] = "",
    decision: Annotated[Decision | None, typer.Option(help="with this decision alone")] = None,
    head: Annotated[
        str, typer.Option(help="a last hash that you wrote down: the log must have gone on from it")
    ] = "",
    summary: Annotated[
        bool, typer.Option("--summary", help="a summary of each day in Markdown, not every line")
    ] = False,
) -> None:
    """Check that a node's log is whole; show its messages, or a summary of each day."""
    from fedif_flower.member.log_summary import chosen, summarize, table
    from fedif_flower.member.node_log import read_node_log

    console = Console()
    found = read_node_log(folder)
    after = found.lines_after(head) if head else None
    lines = chosen(found.lines, run=run, day=day, decision=decision)
    shown = summarize(lines) if summary else table(lines)
    console.print(shown, soft_wrap=True, highlight=False, markup=False, end="")
    total = f"\nWhole: {len(found.lines)} lines, the last hash is {found.head}"
    console.print(total, soft_wrap=True, highlight=False)
    if after is not None:
        console.print(f"The log goes on from that hash: {after} lines since.", highlight=False)
