"""What is erased of a removed member, and what stays."""

from __future__ import annotations

from pathlib import Path

import typer

from fedif_consortium.federation.records import FederationFolder, MemberRecord
from fedif_consortium.statement.undelivered import take_off_queue
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import exclusive_lock


def erase(folder: FederationFolder, name: str) -> None:
    """Erase what need not be kept of a removed member.

    Its name and number stay, so that no other member gets them. If the records of a run in
    ``runs/`` of this folder name its node, its keys stay too, since its signatures there could not
    be checked without them; only its page is erased that it has not got yet. Runs elsewhere are not
    looked for.

    Raises
    ------
    ConfigError
        If the member was not removed.
    """
    with exclusive_lock(folder.lock):
        member = folder.members()[name]
        if not member.removed:
            raise ConfigError(f"{name} is a member: remove it first")
        runs = _runs_of(folder, member)
        for run in runs:
            _forget_page(run, member)
        if runs:
            return
        typer.echo(f"looked for its records in {_runs_folder(folder)} alone: there are none")
        for path in folder.public_keys(name):
            path.unlink()
            typer.echo(f"erased {path}")
        folder.save(member.with_values(key="", earlier_keys=[], node_id=""))


def tell_what_stays(folder: FederationFolder, name: str) -> None:
    """Print what is kept of a removed member, and why."""
    member = folder.members()[name]
    typer.echo(f"stays: {folder.member_file(name)}, so that nobody else gets name and number")
    for path in folder.public_keys(name):
        typer.echo(f"stays: {path}, by which what it signed is checked")
    for run in _runs_of(folder, member):
        if run.statement.is_dir():
            typer.echo(
                f"stays: records, kept updates and statement in {run.path}: they were signed"
            )
        else:
            typer.echo(
                f"stays: records and kept updates in {run.path}: others' contributions are "
                "computed with them"
            )


def _runs_of(folder: FederationFolder, member: MemberRecord) -> list[RunFolder]:
    """Return the runs, and earlier attempts, in this folder whose records name a member's nodes."""
    if not member.node_id:
        return []
    runs = []
    for path in sorted(_runs_folder(folder).glob("*")):
        run = RunFolder(path)
        for attempt in (run, *run.attempts_put_aside()):
            # A member that was online but never asked is in the last two tables only.
            in_records: set[str] = set()
            for table in (attempt.clients, attempt.attendance, attempt.names):
                in_records.update(row["client_id"] for row in table.read())
            if in_records & _client_ids(attempt, member):
                runs.append(attempt)
    return runs


def _client_ids(run: RunFolder, member: MemberRecord) -> set[str]:
    """Return the ids that a member may have in a run's records: its node's, and those of its name.

    Before the SuperLink's database was lost, it was another node.
    """
    client_ids = {member.node_id}
    for row in run.names.read():
        if row.get("name") == member.name:
            client_ids.add(row["client_id"])
    return client_ids


def _runs_folder(folder: FederationFolder) -> Path:
    """Return the folder of runs, if their run configs have no other ``output-dir``."""
    return folder.path / "runs"


def _forget_page(run: RunFolder, member: MemberRecord) -> None:
    """Erase a member's page from those that were not delivered yet."""
    own_ids = {int(client_id) for client_id in _client_ids(run, member)}
    if take_off_queue(run, own_ids):
        typer.echo(f"erased its page from {run.undelivered.path}")
