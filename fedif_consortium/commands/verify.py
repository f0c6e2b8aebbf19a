"""``fedif verify`` and ``fedif replay``: whoever has a statement or a run's records checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedif_consortium.commands.statement import Members
from fedif_flower.cli import RunDir, require_directories

verify_cli = typer.Typer(add_completion=False)


@verify_cli.command()
def verify(
    path: Annotated[Path, typer.Argument(help="a run's folder, or a member's page")],
    key: Annotated[str, typer.Option(help="fingerprint of the key that must have signed")] = "",
    members: Members = None,
    receipts: Annotated[
        list[Path] | None,
        typer.Option(help="a member's receipts-dir; several: they are compared with each other"),
    ] = None,
) -> None:
    """Check that a statement is as it was signed, and follows from the run's records."""
    from fedif_consortium.evidence.keys import read_members
    from fedif_consortium.statement.verify import verify as check

    known = None if members is None else read_members(members)
    found = check(path, key, known, receipts or ())
    typer.echo(f"Unchanged: {path}, made {found.manifest.made}")
    for signer in found.signed.signers:
        unknown = f"Not checked: a signature with key {signer.key}; --members says whose it is"
        typer.echo(f"Signed by: {signer.key}, {signer.name}" if signer.name else unknown)
    for name in found.not_here:
        typer.echo(f"Not here, so not checked: {name}")
    for member in found.members:
        signed = f"{member.signed} of {member.accepted} updates"
        typer.echo(f"Signed by {member.name}: {signed}")
    for held in found.receipts:
        kept = f"{len(held.lines)} lines, {len(held.rounds)} heads"
        typer.echo(f"As {held.name} was told: {kept}")
    if found.redone:
        rounds = ", ".join(map(str, found.redone))
        typer.echo(f"Done again after the run was resumed: rounds {rounds}")


@verify_cli.command()
def replay(
    run_dir: RunDir,
    import_from: Annotated[
        list[str] | None,
        typer.Option(help="a package whose code the run's settings may name, module:object"),
    ] = None,
) -> None:
    """Recompute what each member contributed from the updates that a run kept, bit for bit."""
    require_directories([run_dir])
    from fedif_consortium.statement.replay import replay as recompute

    found = recompute(run_dir, import_from=import_from or ())
    typer.echo(f"The same bits: {found.contributions} contributions in {found.rounds} rounds")
