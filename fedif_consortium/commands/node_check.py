"""``fedif node check``: whether this host can take part, before a run asks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedif_consortium.commands.node_join import Folder

check_cli = typer.Typer(add_completion=False)
_HERE = Path()


@check_cli.command("check")
def node_check(
    node_config: Annotated[
        str | None,
        typer.Option(
            "--node-config",
            help="KEY=VALUE ..., as for flower-supernode; default: the node of `fedif node join`, "
            "with its server, certificate and policy",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("-c", "--run-config", help="KEY=VALUE ... of the run, as for flwr run"),
    ] = None,
    server: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink")] = "",
    ca: Annotated[Path | None, typer.Option(help="the federation's certificate: ca.crt")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="your member-policy.toml, if the SuperNode is guarded")
    ] = None,
    folder: Folder = _HERE,
) -> None:
    """Check data, a batch of training, disk, keys and app; the server's certificate and the clock.

    Ends with status 1 if this host cannot take part.
    """
    from rich.table import Table

    from fedif_consortium.federation.node import NodeFolder
    from fedif_consortium.member.host_check import check_policy, check_server, own_findings
    from fedif_flower.client.preflight import tried
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.messages.preflight import ADVICE, Status
    from fedif_flower.run.config import RunConfig
    from fedif_flower.settings import parse_overrides

    if node_config is None:
        joined = NodeFolder(folder.expanduser().absolute())
        settings, own = joined.read()
        server = server or settings.superlink
        ca = ca or joined.path / settings.certificate
        policy = policy or (joined.path / settings.policy if settings.policy else None)
    else:
        own = parse_overrides(node_config)
    node = NodeConfig.from_node_config(own)
    clients = {} if node.num_partitions is None else {"num-clients": node.num_partitions}
    run = RunConfig.from_run_config({**clients, **parse_overrides(" ".join(config or []))})
    found = own_findings(run, node, run.masking)
    if server:
        found += check_server(server, ca or Path("ca.crt"))
    if policy is not None:
        found.append(tried("app", lambda: check_policy(policy)))
    table = Table("check", "status", "found", "to do")
    for one in found:
        advice = "" if one.status is Status.OK else ADVICE[one.check]
        table.add_row(one.check, one.status, escape(one.words), advice)
    Console().print(table)
    if any(one.status is Status.FAILED for one in found):
        raise typer.Exit(1)
