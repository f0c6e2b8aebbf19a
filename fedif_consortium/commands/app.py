"""``fedif app``: show, sign and approve the apps that may run at a member."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedif_consortium.member.apps import MemberApps

app_cli = typer.Typer(name="app", add_completion=False, no_args_is_help=True)

App = Annotated[str, typer.Argument(help="a bundle, an app's folder, or a digest's beginning")]
Policy = Annotated[Path, typer.Option(help="the member's file, which names its folders")]
_HERE = Path()  # The folder whose member-policy.toml is read, if it has one.


@app_cli.callback()
def app() -> None:
    """Show, sign and approve the apps that run at a member.

    APP is a bundle's file, an app's folder, or the first digits of a digest. A digest names a
    bundle in one of the policy's folders, such as a bundle that the SuperNode refused.
    """


@app_cli.command()
def show(app: App, policy: Policy = _HERE) -> None:
    """Show an app's files with their digests, its own digest, and who signed it.

    To see what changed between two apps: diff <(fedif app show ONE) <(fedif app show OTHER).
    """
    from fedif_consortium.member.apps import MANIFEST, bundle_digest
    from fedif_flower.messages.text import printable

    apps = _apps(policy)
    bundle = apps.find(app)
    for path, content in sorted(bundle.files.items()):
        if path != MANIFEST:
            typer.echo(f"{bundle_digest(content)[:16]} {len(content):>9}  {printable(path)}")
    typer.echo(f"app      {printable(bundle.name)} {printable(bundle.version)}")
    typer.echo(f"SHA-256  {bundle.digest}, {len(bundle.content)} bytes")
    typer.echo(f"signers  {', '.join(apps.signers_of(bundle.digest)) or 'nobody on your list'}")
    typer.echo(f"here     {apps.approval(bundle.digest) or 'not approved: it does not run'}")


@app_cli.command()
def sign(
    app: App,
    key: Annotated[Path, typer.Option(help="your private key: Ed25519 or an elliptic curve's")],
    policy: Policy = _HERE,
    to: Annotated[Path, typer.Option(help="folder that the signature is written to")] = Path(),
) -> None:
    """Sign an app: write a signature file, which members put into their policy's signatures."""
    from fedif_consortium.evidence.keys import load_key
    from fedif_consortium.member.apps import sign_bundle
    from fedif_flower.storage import make_folder, write_atomically

    bundle = _apps(policy).find(app)
    name, content = sign_bundle(bundle.digest, load_key(key))
    make_folder(to)
    write_atomically(to / name, content)
    typer.echo(to / name)


@app_cli.command()
def approve(
    app: App,
    policy: Annotated[
        Path | None, typer.Option(help="the member's file; default: that of this folder")
    ] = None,
) -> None:
    """Let an app run at this member, from the next message on."""
    from fedif_consortium.member.policy import FILE
    from fedif_flower.errors import ConfigError
    from fedif_flower.messages.text import printable

    if policy is None:
        # An app that is approved in a folder that no node reads would not run, whatever is printed.
        if not (_HERE / FILE).exists():
            raise ConfigError(
                f"{_HERE.absolute()} has no {FILE}: name the policy of this member's node with "
                "--policy FILE"
            )
        policy = _HERE
    apps = _apps(policy)
    bundle = apps.find(app)
    path = apps.approve(bundle)
    typer.echo(f"{printable(bundle.name)} {printable(bundle.version)} runs here now: {path}")


def _apps(policy: Path) -> MemberApps:
    from fedif_consortium.member.policy import read_member_policy

    return read_member_policy(policy).apps
