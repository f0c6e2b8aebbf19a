"""``fedif keeper``: a keeper of masks, and its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

keeper_cli = typer.Typer(add_completion=False)


@keeper_cli.callback(invoke_without_command=True)
def keeper(
    context: typer.Context,
    policy: Annotated[
        Path, typer.Option(help="TOML: where it listens, whom it knows, what it answers")
    ] = Path("keeper.toml"),
) -> None:
    """Keep the masks of a federation whose server sees no update; see also: fedif keeper log."""
    if context.invoked_subcommand is None:
        from fedif_consortium.masking.keeper_service import read_keeper_config, serve
        from fedif_flower.run.logs import show_logs

        config = read_keeper_config(policy)
        show_logs(config.settings.log_format)
        serve(config)


@keeper_cli.command("log")
def keeper_log(
    file: Annotated[Path, typer.Argument(help="log.txt in the keeper's folder")],
) -> None:
    """Show what a keeper answered and refused, and check that its log is whole."""
    from fedif_consortium.commands.node import show_log

    show_log(file)


@keeper_cli.command("init")
def keeper_init(
    folder: Annotated[Path, typer.Argument(help="the keeper's folder")],
    hosts: Annotated[list[str], typer.Argument(help="names or addresses the server reaches it by")],
) -> None:
    """Make a keeper's keys and certificate; what is there already stays."""
    from fedif_consortium.federation.files import private_folder
    from fedif_consortium.federation.server import make_pair
    from fedif_consortium.masking.keeper_service import KeeperSettings, keeper_key

    found = folder.expanduser().absolute()
    private_folder(found)
    make_pair(found, "keeper", hosts, "the operator of the server")
    state = found / KeeperSettings().state
    public = keeper_key(state).public_key().public_bytes_raw().hex()
    typer.echo(f"{state / 'box-key.pub'}: goes to every member; its private half stays")
    typer.echo(f"public key of this keeper: {public}")
