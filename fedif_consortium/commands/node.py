"""``fedif node``: what a member does on its own host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

node_cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A member's own host: joining a federation, what may leave, and what went in and out.",
)
Folder = Annotated[
    Path, typer.Option("--in", envvar="FEDIF_MEMBER", help="the node's folder on this host")
]
_HERE = Path()


@node_cli.command()
def join(
    invitation: Annotated[Path, typer.Argument(help="the operator's file")],
    data_dir: Annotated[
        Path | None, typer.Option(help="this member's training data, read where they lie")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("-c", "--config", help="KEY=VALUE ... of the node")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="of this host, for its own use")
    ] = 9094,
    policy: Annotated[Path | None, typer.Option(help="what this host lets apps do, TOML")] = None,
    check: Annotated[bool, typer.Option(help="try whether the server answers")] = True,
    folder: Folder = _HERE,
) -> None:
    """Make this host's key, settings and the answer to an invitation; what is there stays."""
    from fedif_consortium.federation.certificates import reach
    from fedif_consortium.federation.documents import read_document
    from fedif_consortium.federation.invitation import Invitation
    from fedif_consortium.federation.node import NodeFolder
    from fedif_consortium.federation.node import join as make
    from fedif_flower.errors import ConfigError
    from fedif_flower.settings import parse_overrides

    found = NodeFolder(folder.expanduser().absolute())
    given = parse_overrides(" ".join(config or []))
    if data_dir is not None:
        if not data_dir.is_dir():
            raise ConfigError(f"data-dir = {str(data_dir)!r} is no directory")
        given["data-dir"] = str(data_dir.absolute())
    if policy is not None and not policy.is_file():
        raise ConfigError(f"policy = {str(policy)!r} is no file")
    guard = str(policy.absolute()) if policy else ""
    read = read_document(invitation, Invitation)
    make(found, read, config=given, port=port, policy=guard)
    if check:
        reach(read.address, found.authority)
        typer.echo(f"{read.address} answers, and is the one invited to")
    typer.echo("once the operator has added this member: fedif node start")


@node_cli.command()
def start(
    options: Annotated[
        list[str] | None, typer.Argument(help="after --: more options of flower-supernode")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="what this host lets apps do, TOML")] = None,
    folder: Folder = _HERE,
) -> None:
    """Start the node that `fedif node join` made; it keeps running."""
    from fedif_consortium.federation.node import NodeFolder, node_program

    guard = str(policy.absolute()) if policy else ""
    node_program(NodeFolder(folder.expanduser().absolute()), guard, options or []).start()


@node_cli.command("log")
def node_log(
    folder: Annotated[Path, typer.Argument(help="of the log, as [log] of the policy names it")],
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
    after = lines_after(entries, head) if head else 0
    for entry in entries:
        typer.echo(json.dumps(entry))
    typer.echo(f"Whole: {len(entries)} lines, the last hash is {last_hash(entries)}", err=True)
    if head:
        typer.echo(f"The log goes on from that hash: {after} lines since.", err=True)


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
    from rich.table import Table

    from fedif_consortium.evidence.part import EvidenceSettings
    from fedif_consortium.federation.host_check import check_server, guard_findings, own_findings
    from fedif_consortium.federation.node import NodeFolder
    from fedif_consortium.masking.settings import MaskingSettings
    from fedif_consortium.parts import server_parts
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.messages.preflight import ADVICE, Status
    from fedif_flower.run.config import RunConfig
    from fedif_flower.settings import parse_overrides

    joined = NodeFolder(folder.expanduser().absolute())
    settings, own = joined.read()
    policy = joined.path / settings.policy if settings.policy else None
    node = NodeConfig.from_node_config(own)
    clients = {} if node.num_partitions is None else {"num-clients": node.num_partitions}
    given = {**clients, **parse_overrides(" ".join(config or []))}
    run = RunConfig.from_run_config(given, server_parts())
    required = run.section(EvidenceSettings).require_signatures
    found = [
        *own_findings(run, node, run.section(MaskingSettings).mode),
        *guard_findings(policy, joined.key, node, required=required),
        *check_server(settings.superlink, joined.authority),
    ]
    table = Table("check", "status", "found", "to do")
    for one in found:
        advice = "" if one.status is Status.OK else ADVICE[one.check]
        table.add_row(one.check, one.status, escape(one.words), advice)
    Console().print(table)
    if any(one.status is Status.FAILED for one in found):
        raise typer.Exit(1)
