"""``fedif node``, ``inspect``, ``keeper``: commands for the hosts of members and of a keeper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedif_consortium.extra import require_extra
from fedif_flower.cli import Config

if TYPE_CHECKING:
    from fedif_consortium.federation.node import NodeFolder
    from fedif_consortium.member.inspection import InspectedExample

node_cli = typer.Typer(
    name="node",
    add_completion=False,
    no_args_is_help=True,
    help="A member's own host: joining a federation, what may leave, and what went in and out.",
)
keeper_cli = typer.Typer(name="keeper", add_completion=False)
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
        int | None,
        typer.Option(min=1, max=65535, help="of this host, for its own use; default: 9094"),
    ] = None,
    policy: Policy = None,
    check: Annotated[bool, typer.Option(help="try whether the server answers")] = True,
    folder: Folder = _HERE,
) -> None:
    """Answer an invitation: make this host's key and settings; what is there already stays."""
    from fedif_consortium.federation import certificates, node
    from fedif_consortium.federation.files import read_document
    from fedif_consortium.federation.records import Invitation
    from fedif_flower.settings import parse_overrides

    node_folder = _folder(folder)
    node_config = parse_overrides(" ".join(config or []))
    if data_dir is not None:
        node_config["data-dir"] = str(data_dir.absolute())
    document = read_document(invitation, Invitation)
    node.join(node_folder, document, config=node_config, port=port, policy=_absolute(policy))
    if check:
        certificates.reach(document.address, node_folder.authority)
        typer.echo(f"{document.address} answers, and is the one invited to")
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

    start_node(_folder(folder), _absolute(policy), options or [])


@node_cli.command("log")
def node_log(
    folder: Annotated[Path, typer.Argument(help="of the log, in the folder of the policy's state")],
    head: Annotated[
        str, typer.Option(help="a last hash that you wrote down: the log must have gone on from it")
    ] = "",
) -> None:
    """Check that no line of a node's log was changed, and show it: one JSON object per message."""
    from fedif_consortium.member.node_log import FILE

    show_log(folder / FILE, head)


def show_log(path: Path, head: str = "") -> None:
    """Check a chained log, then print its lines, and a line on stderr that says it is whole.

    Parameters
    ----------
    path : Path
        The log.
    head : str
        A hash that the log must contain, one that somebody wrote down earlier; empty: any log
        will do.

    Raises
    ------
    StorageError
        If the log cannot be read.
    EvidenceError
        If a line was changed, the last one was cut short, or no line has the hash ``head``.
    """
    import json

    from fedif_consortium.evidence.chained_log import last_hash, lines_after, read_log

    entries = read_log(path)
    num_lines = f"{len(entries)} lines"
    if head:  # Checked before any line is printed: the hash may be that of another log.
        num_lines += f", {lines_after(entries, head)} of them since that hash"
    for entry in entries:
        typer.echo(json.dumps(entry))
    typer.echo(f"Whole: {num_lines}, the last hash is {last_hash(entries)}", err=True)


@node_cli.command("check")
def node_check(config: Config = None, folder: Folder = _HERE) -> None:
    """Check data, a batch of training, disk, keys and app; the server's certificate and the clock.

    The node is the one that `fedif node join` made. Exits with 1 if this host cannot take part.
    """
    from rich.console import Console

    from fedif_consortium.federation.host_check import check_host
    from fedif_flower.messages.preflight import ADVICE, Status
    from fedif_flower.settings import parse_overrides
    from fedif_flower.tables import ResultTable

    run_config = parse_overrides(" ".join(config or []))
    findings = check_host(_folder(folder), run_config)
    heading = ["check", "status", "found", "to do"]
    lines = []
    for finding in findings:
        advice = ""
        if finding.status is not Status.OK:
            advice = ADVICE[finding.check]
        lines.append([finding.check, finding.status, finding.words, advice])
    ResultTable("", heading, lines, num_labels=len(heading)).print(Console())
    if any(finding.status is Status.FAILED for finding in findings):
        raise typer.Exit(1)


def inspect(
    node_config: Annotated[
        str, typer.Option("--node-config", help="KEY=VALUE ..., as for flower-supernode")
    ],
    output: Annotated[Path, typer.Option(help="the table of all examples")] = Path(
        "inspection.csv"
    ),
    show: Annotated[int, typer.Option(min=1, help="how many examples are shown")] = 20,
    task: Annotated[
        str, typer.Option(help="MODULE:OBJECT here, where the run was about an app's own task")
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
) -> None:
    """Find your own examples that are most likely mislabelled or harmful; nothing leaves this host.

    The run must publish its gradients (gradients.publish=true), and your node must keep them
    (gradients-dir in the node config). This command makes no connection.
    """
    from rich.console import Console

    from fedif_consortium.evidence.kept_gradients import kept_rounds, read_kept
    from fedif_consortium.member import inspection
    from fedif_flower.errors import ConfigError
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.run.rows import csv_text
    from fedif_flower.settings import parse_overrides
    from fedif_flower.storage import make_folder, write_atomically
    from fedif_flower.tables import ResultTable

    node = NodeConfig.from_node_config(parse_overrides(node_config))
    if not node.gradients_dir:
        raise ConfigError("the node config has no gradients-dir: nothing to judge by")
    paths = kept_rounds(Path(node.gradients_dir).expanduser())
    last_round = read_kept(paths[-1])
    member_task, data = inspection.member_data(last_round, node, task)
    files = inspection.files_of(last_round, node)
    rounds = map(read_kept, paths)  # Lazy, so that one round at a time is in memory.
    lines = inspection.inspect_examples(member_task, data, rounds, files, device)
    make_folder(output.absolute().parent)
    write_atomically(output, csv_text([inspection.InspectedExample._fields, *lines]), 0o600)
    ResultTable.of_records([_row_of(line) for line in lines[:show]]).print(Console())
    typer.echo(
        f"{len(lines)} examples, by the model of {len(paths)} rounds. The first labels "
        "are the likeliest wrong ones; a rare example has a large loss, too, and an influence "
        "below 0 alone says little about a label.\n"
        f"All examples: {output.absolute()}. Nothing was sent."
    )


def _row_of(line: InspectedExample) -> dict[str, Any]:
    """Return the cells that are shown of an example, by column."""
    from fedif_flower.messages.text import printable

    agreement = ""
    if line.agreement is not None:
        agreement = f"{line.agreement:.0%}"
    return {
        "rank": line.rank,
        "example": printable(line.file, 400) or line.example,
        "class": printable(line.label),
        "loss": f"{line.loss:.3g}",
        "influence": f"{line.influence:.3g}",
        "agreement": agreement,
    }


@keeper_cli.callback(invoke_without_command=True)
def keeper(
    context: typer.Context,
    policy: Annotated[
        Path, typer.Option(help="TOML: where it listens, whom it knows, what it answers")
    ] = Path("keeper.toml"),
) -> None:
    """Keep the masks of a federation whose server sees no update; see also: fedif keeper log."""
    if context.invoked_subcommand is None:
        require_extra("fedif keeper")
        from fedif_consortium.masking.keeper_service import read_keeper_config, serve
        from fedif_flower.run.logs import show_logs

        config = read_keeper_config(policy)
        show_logs(config.settings.log_format)
        serve(config)


@keeper_cli.command("log")
def keeper_log(
    file: Annotated[Path, typer.Argument(help="log.txt in the keeper's folder")],
) -> None:
    """Check that no line of a keeper's log was changed, and show what it answered and refused."""
    show_log(file)


@keeper_cli.command("init")
def keeper_init(
    folder: Annotated[Path, typer.Argument(help="the keeper's folder")],
    hosts: Annotated[list[str], typer.Argument(help="names or addresses the server reaches it by")],
) -> None:
    """Make a keeper's keys and certificate; what is there already stays."""
    from fedif_consortium.federation.files import make_private_folder
    from fedif_consortium.federation.server import make_pair
    from fedif_consortium.masking.keeper_service import KeeperSettings, keeper_key

    path = folder.expanduser().absolute()
    make_private_folder(path)
    make_pair(path, "keeper", hosts, "the operator of the server")
    state = path / KeeperSettings().state
    public_key = keeper_key(state).public_key()
    typer.echo(f"{state / 'box-key.pub'}: goes to every member; its private half stays")
    typer.echo(f"public key of this keeper: {public_key.public_bytes_raw().hex()}")


def _folder(path: Path) -> NodeFolder:
    from fedif_consortium.federation.node import NodeFolder

    return NodeFolder(path.expanduser().absolute())


def _absolute(policy: Path | None) -> str:
    """Return the absolute path of a policy's file; empty: no policy was given."""
    if policy is None:
        return ""
    return str(policy.absolute())
