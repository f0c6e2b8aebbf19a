"""``fedif federation``: the operator's everyday commands, on the server's host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from fedif_consortium.federation.flower import Flower
    from fedif_consortium.federation.folder import FederationFolder
    from fedif_consortium.federation.status import Status
    from fedif_consortium.federation.steps import Steps

federation_cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A federation on real hosts: its server's keys, members and SuperLink.",
)

Folder = Annotated[
    Path,
    typer.Option("--in", envvar="FEDIF_FEDERATION", help="the federation's folder on this host"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done, and do nothing")]
_HERE = Path()


@federation_cli.command()
def init(
    name: Annotated[str, typer.Argument(help="the federation's name")],
    hosts: Annotated[list[str], typer.Argument(help="names or addresses members reach it by")],
    listen: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink")] = "0.0.0.0:9092",
    keeper_key: Annotated[str, typer.Option(help="of a keeper of masks, for invitations")] = "",
    folder: Folder = _HERE,
    dry_run: DryRun = False,
) -> None:
    """Make a federation's keys, certificates and settings; what is there already stays."""
    from fedif_consortium.federation.folder import FederationSettings
    from fedif_consortium.federation.server import initialize

    wanted = FederationSettings(name=name, hosts=hosts, listen=listen, keeper_key=keeper_key)
    initialize(_folder(folder), wanted, _steps(dry_run))


@federation_cli.command()
def invite(
    name: Annotated[str, typer.Argument(help="what the member is called")],
    number: Annotated[int | None, typer.Option(min=0, help="its own; default: the next")] = None,
    folder: Folder = _HERE,
    dry_run: DryRun = False,
) -> None:
    """Write a member's invitation: one file, without a secret, for `fedif node join`."""
    from fedif_consortium.federation.members import invite as write

    write(_folder(folder), name, number, _steps(dry_run))


@federation_cli.command("add-member")
def add_member(
    answers: Annotated[
        list[Path], typer.Argument(help="answers of `fedif node join`, or keys: NAME.pub")
    ],
    folder: Folder = _HERE,
    dry_run: DryRun = False,
) -> None:
    """Let members in: register their keys at the SuperLink, which has to be running."""
    from fedif_consortium.federation.members import add

    found, steps = _folder(folder), _steps(dry_run)
    flower = _flower(found, dry_run=dry_run)
    for answer in answers:
        add(found, answer, flower, steps)


@federation_cli.command("remove-member")
def remove_member(
    name: Annotated[str, typer.Argument(help="a member")],
    folder: Folder = _HERE,
    dry_run: DryRun = False,
) -> None:
    """End a member's registration: its key opens nothing any more, and a run goes on without it."""
    from fedif_consortium.federation.members import remove

    found = _folder(folder)
    remove(found, name, _flower(found, dry_run=dry_run), _steps(dry_run))


@federation_cli.command()
def superlink(
    options: Annotated[
        list[str] | None, typer.Argument(help="after --: more options of flower-superlink")
    ] = None,
    folder: Folder = _HERE,
    dry_run: DryRun = False,
) -> None:
    """Run the SuperLink, guarded, for registered members alone; it keeps running."""
    import shlex

    from fedif_consortium.federation.server import superlink_program

    program = superlink_program(_folder(folder), options or [])
    if dry_run:
        _say(f"would start in {program.folder}: {shlex.join(program.arguments)}")
    else:
        program.start()


@federation_cli.command()
def run(
    config: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE ..., as `flwr run` takes them")
    ] = None,
    app: Annotated[
        Path | None, typer.Option(help="folder of the app; default: this project's checkout")
    ] = None,
    folder: Folder = _HERE,
    dry_run: DryRun = False,
) -> None:
    """Run an app to its end, and follow its log; exit with 0 only if it completed."""
    from fedif_consortium.federation.runs import app_folder, run_to_end

    found = _folder(folder)
    flower, chosen = _flower(found, dry_run=dry_run), app_folder(app)
    given = " ".join(config or [])
    if dry_run:
        _say(f"would run {chosen} {given}".rstrip())
    else:
        run_to_end(flower, chosen, given, _say)


@federation_cli.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    folder: Folder = _HERE,
) -> None:
    """Show SuperLink, members, certificate, disk and runs; exit with 1 if something is wrong."""
    import json

    from fedif_consortium.federation.status import look

    found = _folder(folder)
    seen = look(found, _flower(found))
    if as_json:
        typer.echo(json.dumps(seen.to_json(), indent=1))
    else:
        _show(seen)
    raise typer.Exit(1 if seen.warnings else 0)


@federation_cli.command("rotate-certificate")
def rotate_certificate(
    hosts: Annotated[list[str] | None, typer.Argument(help="more names or addresses")] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="the SuperLink serves the new one: drop the old one")
    ] = False,
    back: Annotated[bool, typer.Option("--back", help="put the old one back")] = False,
    folder: Folder = _HERE,
    dry_run: DryRun = False,
) -> None:
    """Make the server a new certificate by the same authority; the old one stays beside it."""
    from fedif_consortium.federation.server import confirm_rotation, rotate, undo_rotation
    from fedif_flower.errors import ConfigError

    if confirm + back + bool(hosts) > 1:
        raise ConfigError("either hosts, or --confirm, or --back")
    found, steps = _folder(folder), _steps(dry_run)
    if confirm:
        confirm_rotation(found, steps)
    elif back:
        undo_rotation(found, steps)
    else:
        rotate(found, hosts or [], steps)


@federation_cli.command()
def connect(
    name: Annotated[str, typer.Argument(help="what Flower's commands are to call it")],
    address: Annotated[str, typer.Argument(help="HOST:PORT, by an SSH tunnel from elsewhere")],
    certificate: Annotated[Path, typer.Argument(help="ca.crt of the federation")],
    dry_run: DryRun = False,
) -> None:
    """Tell Flower's commands (`flwr list`, `flwr log`) about a SuperLink; `init` does it here."""
    from fedif_consortium.federation.certificates import read_certificate
    from fedif_consortium.federation.flower import connect as add

    read_certificate(certificate)
    add(name, address, certificate, _steps(dry_run))


@federation_cli.command("keeper-client")
def keeper_client(folder: Folder = _HERE, dry_run: DryRun = False) -> None:
    """Make the certificate by which a keeper of masks knows this server."""
    from fedif_consortium.federation.server import make_pair

    found = _folder(folder)
    found.settings()
    make_pair(found.path, "keeper-client", [], "the keeper", _steps(dry_run))


def _say(line: str) -> None:
    Console().print(line, soft_wrap=True, highlight=False, markup=False)


def _steps(dry_run: bool) -> Steps:
    from fedif_consortium.federation.steps import Steps

    return Steps(_say, dry_run=dry_run)


def _folder(path: Path) -> FederationFolder:
    from fedif_consortium.federation.folder import FederationFolder

    return FederationFolder(path.expanduser().absolute())


def _flower(folder: FederationFolder, *, dry_run: bool = False) -> Flower:
    """Return Flower's command with the connection to this host's SuperLink."""
    from fedif_consortium.federation.flower import Flower, connect
    from fedif_consortium.federation.steps import Steps

    settings = folder.settings()
    quiet = Steps(lambda _: None, dry_run=dry_run)
    connect(settings.name, settings.local_address, folder.authority, quiet)
    return Flower(settings.name)


def _show(seen: Status) -> None:
    from rich.table import Column, Table

    answer = f"answers in {seen.seconds:.2f} s" if not seen.superlink else "does not answer"
    _say(f"{seen.federation} at {seen.address}: the SuperLink {answer}")
    _say(f"certificate until {seen.certificate_ends}, its authority until {seen.authority_ends}")
    _say(f"{seen.free_bytes / 2**30:.1f} GiB free")
    members = Table("number", "member", "state", "online", "last seen")
    members.add_column("node", no_wrap=True)
    for m in seen.members:
        online = {True: "yes", False: "no", None: ""}[m.online]
        members.add_row(str(m.number), m.name, m.state, online, m.last_seen or "", m.node_id)
    runs = Table(
        Column("run", no_wrap=True), Column("status", no_wrap=True), "began", "ended", "details"
    )
    for run in seen.runs:
        runs.add_row(
            *(run[key] for key in ("run-id", "status", "began", "ended", "status-details"))
        )
    console = Console()
    for table in (members, runs):
        if table.row_count:
            console.print(table)
    for warning in seen.warnings:
        console.print(f"! {warning}", soft_wrap=True, highlight=False, markup=False, style="yellow")
