"""``fedif node join`` and ``start``: a member's host takes part in a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedif_consortium.commands.federation import say

join_cli = typer.Typer(add_completion=False)

Folder = Annotated[
    Path, typer.Option("--in", envvar="FEDIF_MEMBER", help="the node's folder on this host")
]
_HERE = Path()


@join_cli.command()
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
    from fedif_consortium.federation.node import NodeFolder, read_invitation
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
    read = read_invitation(invitation)
    make(found, read, say, config=given, port=port, policy=guard)
    if check:
        reached = reach(read.address, found.authority)
        end = f"{reached.certificate.not_valid_after_utc:%Y-%m-%d}"
        say(f"{read.address} answers, and is the one invited to; its certificate ends on {end}")
    say("once the operator has added this member: fedif node start")


@join_cli.command()
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
