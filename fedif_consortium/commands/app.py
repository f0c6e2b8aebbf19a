"""``fedif app``: look at the app that a run would execute here, sign it, let it run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedif_consortium.member.app_bundle import AppBundle
    from fedif_consortium.member.app_rules import MemberApps

app_cli = typer.Typer(add_completion=False, no_args_is_help=True)

App = Annotated[str, typer.Argument(help="a bundle, an app's folder, or a digest's beginning")]
Policy = Annotated[Path, typer.Option(help="the member's file, which names its folders")]
_POLICY = Path("member-policy.toml")


@app_cli.callback()
def app() -> None:
    """Show, sign and approve the apps that run at a member.

    APP is a bundle's file, an app's folder, or how the digest of a bundle begins that lies in one
    of the policy's folders, such as one that the SuperNode refused.
    """


@app_cli.command()
def show(app: App, policy: Policy = _POLICY) -> None:
    """Show an app's files with their digests, its own digest, and who signed it.

    What changed between two: diff <(fedif app show ONE) <(fedif app show OTHER).
    """
    from fedif_consortium.member.app_bundle import MANIFEST, bundle_digest
    from fedif_flower.messages.text import printable

    apps = _apps_if_any(policy)
    bundle = _find(app, apps)
    for path, content in sorted(bundle.files.items()):
        if path != MANIFEST:
            typer.echo(f"{bundle_digest(content)[:16]} {len(content):>9}  {printable(path)}")
    typer.echo(f"app      {printable(bundle.name)} {printable(bundle.version)}")
    typer.echo(f"SHA-256  {bundle.digest}, {len(bundle.content)} bytes")
    if apps is not None:
        typer.echo(f"signers  {', '.join(apps.signers_of(bundle.digest)) or 'nobody on your list'}")
        typer.echo(f"here     {apps.approval(bundle.digest) or 'not approved: it does not run'}")


@app_cli.command()
def sign(
    app: App,
    key: Annotated[Path, typer.Option(help="your private key: Ed25519 or an elliptic curve's")],
    policy: Policy = _POLICY,
    to: Annotated[Path, typer.Option(help="folder that the signature is written to")] = Path(),
) -> None:
    """Sign an app: a file beside it, which members put into their policy's signatures."""
    from fedif_consortium.evidence.keys import read_key_file
    from fedif_consortium.member.app_bundle import sign_bundle
    from fedif_flower.storage import make_folder, write_atomically

    signer = read_key_file(key, "--key")
    bundle = _find(app, _apps_if_any(policy))
    name, content = sign_bundle(bundle.digest, signer)
    make_folder(to)
    write_atomically(to / name, content)
    typer.echo(to / name)


@app_cli.command()
def approve(app: App, policy: Policy = _POLICY) -> None:
    """Let an app run at this member, from the next message on."""
    apps = _apps(policy)
    bundle = _find(app, apps)
    path = apps.approve(bundle)
    typer.echo(f"{bundle.name} {bundle.version} runs here now: {path}")


def _apps(policy: Path) -> MemberApps:
    from fedif_consortium.member.policy import read_member_policy

    return read_member_policy(policy).apps


def _apps_if_any(policy: Path) -> MemberApps | None:
    """Return a member's apps; ``None`` for somebody, such as an auditor, who has no policy."""
    return None if policy == _POLICY and not policy.exists() else _apps(policy)


def _find(app: str, apps: MemberApps | None) -> AppBundle:
    """Return the bundle that an argument means."""
    from fedif_consortium.member.app_bundle import build_bundle, read_bundle
    from fedif_flower.errors import ConfigError

    path = Path(app)
    if path.is_dir():
        return build_bundle(path)
    if path.is_file():
        return read_bundle(path.read_bytes(), app)
    if apps is None:
        raise ConfigError(f"{app!r} is no file and no folder; for a digest, name --policy as well")
    return apps.find(app)
