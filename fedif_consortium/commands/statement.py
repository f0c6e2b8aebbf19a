"""``fedif statement``, ``verify``, ``replay``: make, sign, check and recompute a statement."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from fedif_flower.cli import RunDir, require_directories
from fedif_flower.errors import ConfigError
from fedif_flower.messages.text import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedif_consortium.evidence.attempts import Attempts
    from fedif_consortium.evidence.held_receipts import HeldReceipts
    from fedif_consortium.evidence.keys import VerifyingKey
    from fedif_consortium.statement.verify import Verified

DEFAULT = "make"


class DefaultCommand(TyperGroup):
    """A group with a default command: ``fedif statement RUN_DIR`` means ``... make RUN_DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command unless the first word is a command's name or ``--help``."""
        if args and args[0] not in (*self.commands, "--help"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


statement_cli = typer.Typer(
    name="statement",
    cls=DefaultCommand,
    add_completion=False,
    no_args_is_help=True,
    help="State what each member contributed (fedif statement RUN_DIR), and sign such a statement.",
)

Members = Annotated[
    Path | None,
    typer.Option(help="folder with members' public keys, NAME.pub: says who signed"),
]
Stated = Annotated[
    Path, typer.Argument(help="a run's folder, or a member's page with its manifest beside it")
]


@statement_cli.command(DEFAULT)
def make(
    run_dir: RunDir,
    budget: Annotated[
        str, typer.Option(help="an amount to share out, such as 1000; default: the run config's")
    ] = "",
    names: Annotated[
        Path | None,
        typer.Option(exists=True, help="CSV: client_id,name; default: the names at registration"),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="Ed25519 key that signs, made if missing; default: the federation's"),
    ] = None,
    from_round: Annotated[
        int, typer.Option(help="the first round that counts, where the first ones decide too much")
    ] = 1,
    contact: Annotated[
        str, typer.Option(help="whom members may ask: shown on every page; default: as budget")
    ] = "",
    pay_by: Annotated[
        Literal["sum", "draw"] | None,
        typer.Option(
            help="shares of the sum over all rounds, or of the mean per draw; default: the run "
            "config's, else sum"
        ),
    ] = None,
    ties: Annotated[
        Literal["apart", "alike"] | None,
        typer.Option(
            help="alike: members that are not told apart share equally; default: the run config's, "
            "else apart"
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="make another one; the one that is there is kept")
    ] = False,
    accept_held_out: Annotated[
        bool,
        typer.Option(
            "--accept-held-out",
            help="pay by held-out data that are not to be paid by: the statement says so",
        ),
    ] = False,
) -> None:
    """State what each member contributed to a run: signed pages, a table, JSON.

    The members of a deployed run get their pages by the next run with the same output-dir.

    The word make may be left out: fedif statement RUN_DIR.
    """
    require_directories([run_dir])
    from fedif_consortium.evidence import keys
    from fedif_consortium.statement.bundle import (
        load_signer,
        make_by_terms,
        read_account,
        statement_terms,
    )
    from fedif_consortium.statement.manifest import ACCOUNT, PAGE
    from fedif_consortium.statement.members_names import read_names
    from fedif_consortium.statement.pages import open_games
    from fedif_flower.run.folder import RunFolder

    signer = load_signer(run_dir, key or keys.default_key_path())
    agreed = statement_terms(run_dir)
    other_names = None
    if names is not None:
        other_names = read_names(names)
    folder = make_by_terms(
        run_dir,
        signer,
        agreed.with_options(budget=budget, contact=contact, pay_by=pay_by, ties=ties),
        names=other_names,
        from_round=from_round,
        again=again,
        accept_held_out=accept_held_out,
    )
    typer.echo(f"Statement: {(folder / PAGE).absolute()}")
    account = read_account((folder / ACCOUNT).read_text())
    if account.unpaid:
        typer.secho(f"No shares: {account.unpaid}", fg="yellow")
    run = RunFolder(run_dir)
    for warning in open_games(run.settings()):
        typer.secho(f"Left open: {warning}", fg="yellow")
    if run.undelivered.path.is_file():
        typer.echo(f"Members get their pages by the next run into {run.path.parent}")
    typer.echo(f"Signed by: {keys.fingerprint(signer.public_key())}")


@statement_cli.command()
def sign(
    path: Stated,
    key: Annotated[Path, typer.Option(help="your private key; the SuperNode's own will do")],
    operator: Annotated[
        str | None, typer.Option(help="fingerprint that the operator's key must have")
    ] = None,
    members: Members = None,
) -> None:
    """Verify a statement and add your signature to its manifest: you agree with what it says.

    Send manifest.intoto.json to the operator afterwards. Nothing is signed that does not verify.
    """
    from fedif_consortium.evidence import keys
    from fedif_consortium.statement.countersign import sign_statement

    signer = keys.load_key(key)
    target = sign_statement(path, signer, _wanted("--operator", operator), _keys_of(members))
    typer.echo(f"Signed by: {keys.fingerprint(signer.public_key())}")
    typer.echo(f"Send this to the operator: {target.absolute()}")


def _keys_of(members: Path | None) -> Mapping[str, VerifyingKey] | None:
    """Return members' keys by name; ``None``: the option ``--members`` was not given."""
    from fedif_consortium.evidence.keys import read_members

    if members is None:
        return None
    return read_members(members)


def _wanted(option: str, fingerprint: str | None) -> str:
    """Return the fingerprint that a key must have; empty: the option was not given.

    Raises
    ------
    ConfigError
        If the option was given an empty text, as an unset shell variable gives: the key would then
        be compared with nothing.
    """
    if fingerprint is None:
        return ""
    if not fingerprint.strip():
        raise ConfigError(f"{option} is empty; allowed: a key's fingerprint (is a variable unset?)")
    return fingerprint


@statement_cli.command()
def merge(
    path: Stated,
    files: Annotated[list[Path], typer.Argument(help="manifest.intoto.json as members signed it")],
    members: Annotated[Path, typer.Option(help="folder with the members' public keys, NAME.pub")],
) -> None:
    """Add members' signatures to a statement; each signature is checked first."""
    from fedif_consortium.evidence.keys import read_members
    from fedif_consortium.statement.countersign import merge_signatures

    signatures = merge_signatures(path, files, read_members(members))
    for name, is_new in signatures.items():
        deed = "Was there"
        if is_new:
            deed = "Added"
        typer.echo(f"{deed}: {one_line(name)}")


def verify(
    path: Annotated[
        Path, typer.Argument(help="a run's folder, its statement alone, or a member's page")
    ],
    key: Annotated[
        str | None, typer.Option(help="fingerprint of the key that must have signed")
    ] = None,
    members: Members = None,
    receipts: Annotated[
        list[Path] | None,
        typer.Option(help="a member's receipts-dir; several: they are compared with each other"),
    ] = None,
) -> None:
    """Check that a statement is unchanged since it was signed, and follows from the records."""
    from fedif_consortium.statement.verify import verify as check

    verified = check(path, _wanted("--key", key), _keys_of(members), receipts or ())
    typer.echo(f"Unchanged: {path}, made {verified.manifest.made}")
    for line in _lines_of(verified, is_of_run=path.is_dir()):
        typer.echo(line)
    checked = _checked(verified, is_page=path.is_file())
    not_checked = "; ".join(_not_checked(verified, has_key=bool(key), has_members=bool(members)))
    typer.echo(f"Checked: {checked}. Not checked: {not_checked}")


def _lines_of(verified: Verified, *, is_of_run: bool) -> Iterator[str]:
    """Yield lines on what was checked in a statement, and on what was not checked."""
    from fedif_consortium.statement.pages import made_with

    manifest = verified.manifest
    if manifest.made_with != made_with():
        yield "Made by another version, so not checked: that pages show what records say"
    yield from _lines_of_signers(verified)
    if verified.declared is not None:
        yield from _lines_of_attempts(verified.declared)
    if verified.chosen:
        chosen = ", ".join(verified.chosen)
        yield f"Chosen with the statement, not in the run config: {chosen}"
    if is_of_run and not manifest.head:
        yield "No receipts: that the records are not rewritten rests on the operator's word"
    for path in verified.not_here:
        yield f"Not here, so not checked: {path}"
    yield from _lines_of_members(verified)
    yield from _lines_of_receipts(verified)
    if verified.redone:
        rounds = ", ".join(str(number) for number in verified.redone)
        yield f"Done again after the run was resumed: rounds {rounds}"
    if verified.last_round < verified.planned_rounds:
        yield (
            f"The records end with round {verified.last_round}, and the run has num-server-rounds "
            f"= {verified.planned_rounds}: ask why"
        )
    yield f"To compare with other members, who have the same: {verified.digest}"


def _checked(verified: Verified, *, is_page: bool) -> str:
    """Return what was checked, in words."""
    if is_page:
        return "this is a page of the statement that the operator's key above signed"
    if not verified.has_records:
        return "the statement's files are as the operator's key above signed them"
    return "the records agree with each other and with the account, as the key above signed them"


def _not_checked(verified: Verified, *, has_key: bool, has_members: bool) -> Iterator[str]:
    """Yield what was not checked, in words, each with the option or command that checks it."""
    from fedif_consortium.statement.pages import made_with

    if not has_key:
        yield "that the key is the operator's (--key)"
    if not verified.has_records:
        yield "that it follows from the records (verify the run's folder)"
        return
    if verified.manifest.made_with != made_with():
        yield "that pages show what the records say (another version made them)"
    if verified.not_here:
        yield "the files that are not here"
    if not has_members:
        yield "that members sent these updates (--members)"
    if not verified.manifest.head:
        yield "that the records were not rewritten (there are no receipts)"
    elif not verified.receipts:
        yield "that members were told these records (--receipts)"
    elif _num_told(verified) < verified.num_members:
        yield "that the other members were told these records (their --receipts)"
    yield "weights and contributions (fedif replay)"


def _num_told(verified: Verified) -> int:
    """Return of how many members there are receipts; two folders may hold those of one member."""
    client_ids = {held.client_id for held in verified.receipts}
    return len(client_ids - {None})


def _lines_of_signers(verified: Verified) -> Iterator[str]:
    """Yield a line for each signature of the manifest."""
    for signer in verified.signed.signers:
        if signer.name:
            yield f"Signed by: {signer.key}, {one_line(signer.name)}"
        else:
            yield f"Not checked: a signature with key {signer.key}; --members says whose it is"


def _lines_of_attempts(declared: Attempts) -> Iterator[str]:
    """Yield lines on the statement's attempt, and on the run config that members agreed to."""
    name = printable(declared.name)
    yield f"Attempt {declared.number} at run {name!r}; those before are declared"
    yield f"Run config that members agreed to: {declared.last.config}"


def _lines_of_members(verified: Verified) -> Iterator[str]:
    """Yield, for each member, how many of its accepted updates it signed."""
    for member in verified.members:
        name = one_line(member.name)
        yield f"Signed by {name}: {member.signed} of {member.accepted} updates"
        if member.earlier_ids:
            earlier = ", ".join(str(client_id) for client_id in member.earlier_ids)
            yield (
                f"{name} signed earlier rounds as another client, {earlier}: ask whether it was "
                "registered anew"
            )


def _lines_of_receipts(verified: Verified) -> Iterator[str]:
    """Yield lines on each member's receipts: what it was told, and which attempts it saw."""
    for held in verified.receipts:
        name = one_line(held.name)
        counts = f"{len(held.lines)} lines, {len(held.rounds)} heads"
        yield f"Agrees with the receipts of {name}: {counts}"
        if verified.declared is not None:
            yield _attempts_seen(held, verified.declared)
    for lost in verified.lost:
        yield (
            f"{one_line(lost.member)} sent an update in round {lost.round}, and the records say "
            "that no reply came: was it late, or lost on its way?"
        )


def _attempts_seen(held: HeldReceipts, declared: Attempts) -> str:
    """Return how many attempts a member saw, and whether they were declared, in words."""
    seen = sorted({attempt.number for attempt in held.attempts})
    num_declared = len([number for number in seen if number <= declared.number])
    later = [str(number) for number in seen if number > declared.number]
    name = one_line(held.name)
    words = f"{name} saw {num_declared} of the {declared.number} attempts that are declared"
    if later:
        words += f", and {', '.join(later)} later, which this statement does not declare"
    if held.elsewhere:
        ids = ", ".join(run[:8] for run in held.elsewhere)
        words += f"; runs of this name that another key signed: {ids}: ask whose they are"
    return words


def replay(
    run_dir: RunDir,
    import_from: Annotated[
        list[str] | None,
        typer.Option(help="a package whose code the run's settings may name, module:object"),
    ] = None,
) -> None:
    """Recompute weights and contributions from the updates that a run kept."""
    require_directories([run_dir])
    from fedif_consortium.statement.replay import replay as recompute

    # Strategies are made here that send nothing to clients; Flower would warn of their settings.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    replayed = recompute(run_dir, import_from=import_from or ())
    counts = f"{replayed.contributions} contributions in {replayed.rounds} rounds"
    typer.echo(f"Recomputed to the same bits: {counts}")
    typer.echo(f"Weighed again with the same weights: {replayed.weighed} rounds")
    if replayed.examined:
        typer.echo(f"Examined again with the same result: {', '.join(replayed.examined)}")
    if replayed.not_examined:
        typer.echo(f"This run did not examine: {', '.join(replayed.not_examined)}")
    for words in replayed.not_compared:
        typer.echo(f"Not compared: {words}")
    if replayed.not_recorded:
        columns = ", ".join(replayed.not_recorded)
        typer.echo(f"Not recorded by this run's version, so not compared: {columns}")
