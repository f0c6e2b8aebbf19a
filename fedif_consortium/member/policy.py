"""A member's own file: which apps and runs it takes part in, and what of it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedif_consortium.member.apps import AppRules, MemberApps
from fedif_consortium.member.outgoing import LeavesSettings
from fedif_consortium.member.runs import RunRules
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml
from fedif_flower.settings import Settings, setting, take_section, unknown_key

SECTIONS: dict[str, type[Settings]] = {"apps": AppRules, "runs": RunRules, "leaves": LeavesSettings}
FILE = "member-policy.toml"


class PolicySettings(Settings):
    """What stands above the sections of a member's file."""

    state: str = setting(
        "member-state",
        "Folder, relative to this file, in which the SuperNode writes: counts of rounds, bundles "
        "that it refused, its log; made if it is not there.",
    )


@dataclass(frozen=True)
class MemberPolicy:
    """A member's file, read.

    Attributes
    ----------
    state : Path
        The folder in which the SuperNode writes.
    apps : MemberApps
        ``[apps]``: what runs here.
    runs : RunRules
        ``[runs]``.
    leaves : LeavesSettings
        ``[leaves]``: what of a reply leaves.
    """

    state: Path
    apps: MemberApps
    runs: RunRules
    leaves: LeavesSettings


def read_member_policy(path: Path) -> MemberPolicy:
    """Read a member's file, and check all of it.

    Parameters
    ----------
    path : Path
        The file; or the folder in which it is ``member-policy.toml``. Where a folder has none, the
        defaults hold: no app runs that is not approved, no setting of one is changed, and nothing
        leaves but an update with five figures, and answers to queries.

    Raises
    ------
    ConfigError
        Naming the file, the key, and what is allowed.
    """
    is_folder = path.is_dir()
    path = path / FILE if is_folder else path
    content = {} if is_folder and not path.exists() else read_toml(path)
    beside, known = path.parent.absolute(), [*PolicySettings.key_names(), *SECTIONS]
    try:
        own = {name: take_section(content, name) for name in SECTIONS}
        if odd := content.keys() - set(known):
            raise ConfigError(unknown_key(min(odd), known))
        state = beside / PolicySettings(**content).state
        rules, runs, leaves = (_read(kind, name, own[name]) for name, kind in SECTIONS.items())
        return MemberPolicy(state, MemberApps(rules, beside, state), runs, leaves)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read(kind: type[Settings], section: str, values: dict[str, Any]) -> Any:
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"[{section}] {error}") from error
