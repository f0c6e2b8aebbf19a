"""``fedif statement``: made by the operator, signed by members, collected by the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from fedif_flower.errors import ConfigError

DEFAULT = "make"


class DefaultCommand(TyperGroup):
    """A group whose first word may be left out: it is ``make`` where it is no command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command first where no other one, nor ``--help``, is."""
        if args and args[0] not in (*self.commands, "--help"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


statement_cli = typer.Typer(
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
    run_dir: Annotated[Path, typer.Argument(help="a run's folder")],
    budget: Annotated[str, typer.Option(help="an amount to share out, such as 1000")] = "",
    names: Annotated[
        Path | None,
        typer.Option(exists=True, help="CSV: client_id,name; default: the names at registration"),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="Ed25519 key that signs, made if missing; default: one of your own"),
    ] = None,
    from_round: Annotated[
        int, typer.Option(help="the first round that counts, where the first ones decide too much")
    ] = 1,
    contact: Annotated[str, typer.Option(help="whom members may ask: shown on every page")] = "",
    pay_by: Annotated[
        Literal["sum", "draw"],
        typer.Option(help="shares of the sum over all rounds, or of the mean per draw"),
    ] = "sum",
    ties: Annotated[
        Literal["apart", "alike"],
        typer.Option(help="alike: members that are not told apart share equally"),
    ] = "apart",
    again: Annotated[
        bool, typer.Option("--again", help="make another one; the one that is there is kept")
    ] = False,
) -> None:
    """State what each member contributed to a run: signed pages, a table, JSON.

    The word make may be left out: fedif statement RUN_DIR.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"{str(run_dir)!r} is no directory")
    from fedif_consortium.evidence.keys import (
        default_key_path,
        fingerprint,
        load_or_make_key,
        public_of,
    )
    from fedif_consortium.statement.bundle import make_statement, parse_budget, read_account
    from fedif_consortium.statement.manifest import ACCOUNT
    from fedif_consortium.statement.pages import open_games
    from fedif_consortium.statement.records import read_names
    from fedif_flower.run.folder import RunFolder

    signer = load_or_make_key(key or default_key_path())
    folder = make_statement(
        *(run_dir, signer),
        budget_cents=parse_budget(budget) if budget else None,
        names=read_names(names) if names is not None else None,
        from_round=from_round,
        contact=contact,
        pay_by=pay_by,
        ties=ties,
        again=again,
    )
    typer.echo(f"Statement: {(folder / 'statement.html').absolute()}")
    account = read_account((folder / ACCOUNT).read_text())
    if account.unpaid:
        typer.secho(f"No shares: {account.unpaid}", fg="yellow")
    for warning in open_games(RunFolder(run_dir).config.read()):
        typer.secho(f"Left open: {warning}", fg="yellow")
    typer.echo(f"Signed by: {fingerprint(public_of(signer))}")


@statement_cli.command()
def sign(
    path: Stated,
    key: Annotated[Path, typer.Option(help="your private key; the SuperNode's own will do")],
    operator: Annotated[
        str, typer.Option(help="fingerprint that the operator's key must have")
    ] = "",
    members: Members = None,
) -> None:
    """Verify a statement and add your signature to its manifest: you agree with what it says.

    Send manifest.intoto.json to the operator afterwards. Nothing is signed that does not verify.
    """
    from fedif_consortium.evidence.keys import fingerprint, load_key, public_of, read_members
    from fedif_consortium.statement.verify import sign_statement

    signer = load_key(key)
    known = None if members is None else read_members(members)
    target = sign_statement(path, signer, operator, known)
    typer.echo(f"Signed by: {fingerprint(public_of(signer))}")
    typer.echo(f"Send this to the operator: {target.absolute()}")


@statement_cli.command()
def merge(
    path: Stated,
    files: Annotated[list[Path], typer.Argument(help="manifest.intoto.json as members signed it")],
    members: Annotated[Path, typer.Option(help="folder with the members' public keys, NAME.pub")],
) -> None:
    """Add the members' signatures to a statement; each is checked first."""
    from fedif_consortium.evidence.keys import read_members
    from fedif_consortium.statement.verify import merge_signatures

    for name, is_new in merge_signatures(path, files, read_members(members)).items():
        typer.echo(f"{'Added' if is_new else 'Was there'}: {name}")
