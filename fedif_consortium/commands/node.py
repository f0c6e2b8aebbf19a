"""``fedif node``: what a member does on its own host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedif_consortium.federation.node import NodeFolder

node_cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A member's own host: joining a federation, what may leave, and what went in and out.",
)
Folder = Annotated[
    Path, typer.Option("--in", envvar="FEDIF_MEMBER", help="the node's folder on this host")
]
Policy = Annotated[Path | None, typer.Option(exists=True, help="what this host lets apps do, TOML")]
_HERE = Path()


@node_cli.command()
def join(
    invitation: Annotated[Path, typer.Argument(help="the operator's file")],
    data_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="this member's training data"),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("-c", "--config", help="KEY=VALUE ... of the node")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="of this host, for its own use")
    ] = 9094,
    policy: Policy = None,
    check: Annotated[bool, typer.Option(help="try whether the server answers")] = True,
    folder: Folder = _HERE,
) -> None:
    """Make this host's key, settings and the answer to an invitation; what is there stays."""
    from fedif_consortium.federation import certificates, node
    from fedif_consortium.federation.files import read_document
    from fedif_consortium.federation.records import Invitation
    from fedif_flower.settings import parse_overrides

    found, given = _folder(folder), parse_overrides(" ".join(config or []))
    if data_dir is not None:
        given["data-dir"] = str(data_dir.absolute())
    read = read_document(invitation, Invitation)
    node.join(found, read, config=given, port=port, policy=_named(policy))
    if check:
        certificates.reach(read.address, found.authority)
        typer.echo(f"{read.address} answers, and is the one invited to")
    typer.echo("once the operator has added this member: fedif node start")


@node_cli.command()
def start(
    options: Annotated[
        list[str] | None, typer.Argument(help="after --: more options of flower-supernode")
    ] = None,
    policy: Policy = None,
    folder: Folder = _HERE,
) -> None:
    """Start the node that `fedif node join` made; it keeps running."""
    from fedif_consortium.federation.node import start_node

    start_node(_folder(folder), _named(policy), options or [])


@node_cli.command("log")
def node_log(
    folder: Annotated[Path, typer.Argument(help="of the log, in the folder of the policy's state")],
    head: Annotated[
        str, typer.Option(help="a last hash that you wrote down: the log must have gone on from it")
    ] = "",
) -> None:
    """Check that a node's log is whole, and show it: a JSON object for each message."""
    from fedif_consortium.member.node_log import FILE

    show_log(folder / FILE, head)


def show_log(path: Path, head: str = "") -> None:
    """Print a log's lines, once all were checked, and to the other stream that it is whole."""
    import json

    from fedif_consortium.evidence.chained_log import last_hash, lines_after, read_log

    entries = read_log(path)
    after = f", {lines_after(entries, head)} of them since that hash" if head else ""
    for entry in entries:
        typer.echo(json.dumps(entry))
    last = f"the last hash is {last_hash(entries)}"
    typer.echo(f"Whole: {len(entries)} lines{after}, {last}", err=True)


@node_cli.command("check")
def node_check(
    config: Annotated[
        list[str] | None,
        typer.Option("-c", "--run-config", help="KEY=VALUE ... of the run, as for flwr run"),
    ] = None,
    folder: Folder = _HERE,
) -> None:
    """Check data, a batch of training, disk, keys and app; the server's certificate and the clock.

    It is about the node of `fedif node join`. Ends with status 1 if this host cannot take part.
    """
    from rich.console import Console

    from fedif_consortium.federation.host_check import check_host
    from fedif_flower.messages.preflight import ADVICE, Status
    from fedif_flower.settings import parse_overrides
    from fedif_flower.tables import ResultTable

    found = check_host(_folder(folder), parse_overrides(" ".join(config or [])))
    heading = ["check", "status", "found", "to do"]
    lines = [
        [one.check, one.status, one.words, "" if one.status is Status.OK else ADVICE[one.check]]
        for one in found
    ]
    ResultTable("", heading, lines, num_labels=len(heading)).print(Console())
    if any(one.status is Status.FAILED for one in found):
        raise typer.Exit(1)


def _folder(path: Path) -> NodeFolder:
    from fedif_consortium.federation.node import NodeFolder

    return NodeFolder(path.expanduser().absolute())


def _named(policy: Path | None) -> str:
    return str(policy.absolute()) if policy else ""
