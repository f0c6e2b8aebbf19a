"""A member's policy: which apps and runs it takes part in, and what may leave its host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedif_consortium.member.apps import AppRules, MemberApps
from fedif_consortium.member.outgoing import LeavesSettings
from fedif_consortium.member.runs import RunRules
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml
from fedif_flower.settings import Settings, require_known, setting, take_section, unknown_key

SECTIONS: dict[str, type[Settings]] = {"apps": AppRules, "runs": RunRules, "leaves": LeavesSettings}
FILE = "member-policy.toml"
S = TypeVar("S", bound=Settings)


class PolicySettings(Settings):
    """The keys above the sections of a policy's file."""

    state: str = setting(
        "member-state",
        "Folder, relative to this file, in which the SuperNode writes: counts of rounds, bundles "
        "that it refused, its log; made if it is not there.",
    )


@dataclass(frozen=True)
class MemberPolicy:
    """A member's policy, as its file says.

    Attributes
    ----------
    state : Path
        The folder in which the SuperNode writes.
    apps : MemberApps
        ``[apps]``: which apps may run.
    runs : RunRules
        ``[runs]``: which runs the member takes part in, and how often.
    leaves : LeavesSettings
        ``[leaves]``: what of a reply may leave.
    """

    state: Path
    apps: MemberApps
    runs: RunRules
    leaves: LeavesSettings


def read_member_policy(path: Path) -> MemberPolicy:
    """Return the policy in a member's file, after a check of all of it.

    Parameters
    ----------
    path : Path
        The file, or a folder with ``member-policy.toml``. If the folder has no such file, the
        defaults hold: only approved apps run, runs may not change their settings, and nothing
        leaves but updates with three figures, and answers to queries.

    Raises
    ------
    ConfigError
        If a key or a value is not allowed. The message names the file, the key, and what is
        allowed.
    """
    has_defaults = False
    if path.is_dir():
        path = path / FILE
        has_defaults = not path.exists()
    content: dict[str, Any] = {}
    if not has_defaults:
        content = read_toml(path)
    folder = path.parent.absolute()
    try:
        sections = {name: take_section(content, name) for name in SECTIONS}
        _require_known(content)
        state = folder / PolicySettings(**content).state
        app_rules = _checked(AppRules, "apps", sections)
        runs = _checked(RunRules, "runs", sections)
        leaves = _checked(LeavesSettings, "leaves", sections)
        return MemberPolicy(state, MemberApps(app_rules, folder, state), runs, leaves)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _require_known(content: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown key above the sections, or an unknown section."""
    known_keys = [*PolicySettings.key_names(), *SECTIONS]
    unknown_keys = content.keys() - set(known_keys)
    if unknown_keys:
        raise ConfigError(unknown_key(min(unknown_keys), known_keys))


def _checked(settings: type[S], section: str, sections: Mapping[str, dict[str, Any]]) -> S:
    """Return a section's settings; raise ConfigError, with the section's name, for wrong ones."""
    try:
        require_known(settings, sections[section])
        return settings(**sections[section])
    except ConfigError as error:
        raise ConfigError(f"[{section}] {error}") from error
