"""``fedif federation``: the operator's everyday commands, on the server's host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedif_consortium.federation.records import FederationFolder

federation_cli = typer.Typer(
    name="federation",
    add_completion=False,
    no_args_is_help=True,
    help="A federation on real hosts: its server's keys, members and SuperLink.",
)

Folder = Annotated[
    Path,
    typer.Option("--in", envvar="FEDIF_FEDERATION", help="the federation's folder on this host"),
]
_HERE = Path()
# Environment variable: path of the list of removed members. Default: a file beside the folder.
_REMOVED = "FEDIF_REMOVED_MEMBERS"


@federation_cli.command()
def init(
    name: Annotated[str, typer.Argument(help="the federation's name")],
    hosts: Annotated[list[str], typer.Argument(help="names or addresses members reach it by")],
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT for members; default: 0.0.0.0:9092")
    ] = None,
    proxy: Annotated[
        bool | None, typer.Option(help="members come by nginx; default: they do")
    ] = None,
    superlink: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of the SuperLink behind nginx; default: 127.0.0.1:9095"),
    ] = None,
    keeper_key: Annotated[
        str | None, typer.Option(help="of a keeper of masks, for invitations")
    ] = None,
    folder: Folder = _HERE,
) -> None:
    """Make a federation's keys, certificates and settings; what is there already stays.

    Run it again to make what is missing: it then takes options that are not given from
    federation.toml.
    """
    from fedif_consortium.federation.records import FederationSettings
    from fedif_consortium.federation.server import initialize

    federation = _folder(folder)
    values: dict[str, Any] = {}
    if federation.configuration.is_file():
        values = federation.settings().model_dump()
    values["name"] = name
    values["hosts"] = hosts
    options = {"listen": listen, "proxy": proxy, "superlink": superlink, "keeper_key": keeper_key}
    for key, value in options.items():
        if value is not None:
            values[key] = value
    initialize(federation, FederationSettings(**values))


@federation_cli.command()
def invite(
    name: Annotated[str, typer.Argument(help="what the member is called")],
    folder: Folder = _HERE,
) -> None:
    """Write a member's invitation: one file, without a secret, for `fedif node join`."""
    from fedif_consortium.federation import members

    members.invite(_folder(folder), name)


@federation_cli.command("add-member")
def add_member(
    answers: Annotated[list[Path], typer.Argument(help="answers of `fedif node join`")],
    folder: Folder = _HERE,
) -> None:
    """Add members: register their keys at the SuperLink, which has to be running.

    The exit status is 3 if answers were refused; the members of all others are added.
    """
    from fedif_consortium.federation import members, server

    federation = _folder(folder)
    flower = server.flower_of(federation)
    members.add_all(federation, answers, flower)


@federation_cli.command("remove-member")
def remove_member(
    name: Annotated[str, typer.Argument(help="a member")],
    erase: Annotated[
        bool,
        typer.Option(
            "--erase", help="remove what need not stay of it; looks for its runs in FOLDER/runs"
        ),
    ] = False,
    folder: Folder = _HERE,
) -> None:
    """End a member's registration: its key opens nothing any more, and a run goes on without it."""
    from fedif_consortium.federation import erasure, members, server

    federation = _folder(folder)
    members.remove(federation, name, server.flower_of(federation))
    # Removed first: that writes the member's key to the list of removed members, by which the key
    # is refused even if a backup is put back. Erasing may delete the key from the folder.
    if erase:
        erasure.erase(federation, name)
    erasure.tell_what_stays(federation, name)


@federation_cli.command()
def rekey(
    name: Annotated[str, typer.Argument(help="a member")],
    answer: Annotated[Path, typer.Argument(help="of `fedif node join`, with its new key")],
    folder: Folder = _HERE,
) -> None:
    """Replace the key of a member that lost it; the member keeps its number, node and score."""
    from fedif_consortium.federation import members

    members.rekey(_folder(folder), name, answer)


@federation_cli.command()
def superlink(
    options: Annotated[
        list[str] | None, typer.Argument(help="after --: more options of flower-superlink")
    ] = None,
    folder: Folder = _HERE,
) -> None:
    """Run the guarded SuperLink, which serves registered members alone; it keeps running."""
    from fedif_consortium.federation import members, server

    federation = _folder(folder)
    federation.settings()  # Raises ConfigError without a federation, before anything is written.
    unlisted_keys = members.apply_removals(federation)
    server.start_superlink(federation, options or [], unlisted_keys)


@federation_cli.command()
def run(
    config: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE ..., as `flwr run` takes them")
    ] = None,
    app: Annotated[
        Path | None, typer.Option(help="folder of the app; default: this project's checkout")
    ] = None,
    queue: Annotated[
        bool, typer.Option("--queue", help="wait for the end of a run that goes on")
    ] = False,
    beside: Annotated[
        bool, typer.Option("--beside", help="begin all the same: nodes train for both")
    ] = False,
    folder: Folder = _HERE,
) -> None:
    """Run an app to its end and follow its log; exit with 0 only if the run completed."""
    from fedif_consortium.federation import flower, server

    federation = _folder(folder)
    flower.run_to_end(
        server.flower_of(federation),
        app or flower.PROJECT,
        run_config=" ".join(config or []),
        lock=federation.path / ".run.lock",
        queue=queue,
        beside=beside,
    )


@federation_cli.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    folder: Folder = _HERE,
) -> None:
    """Show SuperLink, members, certificates, disk and runs; exit with 1 if there is a warning."""
    import json

    from fedif_consortium.federation import server

    federation = _folder(folder)
    state = server.state_of(federation, server.flower_of(federation))
    if as_json:
        typer.echo(json.dumps(state, indent=1))
    else:
        _show(state)
    if not state["ok"]:
        raise typer.Exit(1)


@federation_cli.command("keeper-client")
def keeper_client(folder: Folder = _HERE) -> None:
    """Make the certificate with which this server identifies itself to a keeper of masks."""
    from fedif_consortium.federation import server

    federation = _folder(folder)
    federation.settings()  # Raises ConfigError without a federation, before anything is written.
    server.make_pair(federation.path, "keeper-client", [], "the keeper")


def _folder(path: Path) -> FederationFolder:
    """Return the federation's folder, with the path of its list of removed members."""
    from fedif_consortium.federation.records import FederationFolder

    # Paths are resolved, so that each spelling of the folder leads to the same list beside it.
    removals: Path | None = None
    if os.environ.get(_REMOVED):
        removals = Path(os.environ[_REMOVED]).expanduser().resolve()
    return FederationFolder(path.expanduser().resolve(), removals)


def _show(state: dict[str, Any]) -> None:
    """Print what :func:`~fedif_consortium.federation.server.state_of` returns."""
    from rich.console import Console

    from fedif_flower.tables import ResultTable

    answer = "answers"
    if state["superlink"]:  # The reason why it does not answer; empty if it does.
        answer = "does not answer"
    typer.echo(f"{state['federation']} at {state['address']}: the SuperLink {answer}")
    typer.echo(
        f"certificate until {state['certificate_ends']}, its authority until "
        f"{state['authority_ends']}"
    )
    typer.echo(f"{state['free_bytes'] / 2**30:.1f} GiB free")
    for records in (state["members"], state["runs"]):
        if records:
            ResultTable.of_records(records).print(Console())
    for warning in state["warnings"]:
        typer.echo(f"! {warning}")
