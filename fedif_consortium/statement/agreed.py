"""The check that a run's settings are those of the run config that its members agreed to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedif_consortium.evidence.attempts import HOW_IT_BEGINS, config_hash, read_attempts
from fedif_consortium.evidence.bound_rows import RUN_CONFIG, agreed_config, fixed_defaults
from fedif_consortium.statement.settings import StatementSettings
from fedif_flower.errors import EvidenceError, StatementError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.own_sections import OFF, own_defaults
from fedif_flower.settings import AUTO
from fedif_flower.tasks.config import OWN


def check_run_config(run: RunFolder) -> Mapping[str, Any]:
    """Check a run's settings against what its members agreed to; return the agreed settings.

    Members agreed to a run config by its hash. Pages show what is credited by ``config.json``, so
    that file has to follow from the run config; keys that the run config lacks have their defaults
    there. If the run counts no attempts, nothing was agreed to, and all its settings are returned.

    Raises
    ------
    StatementError
        If a file is missing or contradicts the agreed run config; the message names file and key.
    """
    provenance = run.provenance.read()
    try:
        attempts = read_attempts(provenance)
        agreed = agreed_config(run)
    except EvidenceError as error:
        raise StatementError(str(error)) from error
    if attempts is None:
        return run.settings()
    if agreed is None:
        raise StatementError("provenance.json lacks the run config that members agreed to")
    if config_hash(provenance[RUN_CONFIG]) != attempts.last.config:
        raise StatementError("provenance.json has another run config than members agreed to")
    if not run.config.path.is_file():
        raise StatementError(f"{run.config.path.name} is missing: a run with a run config has it")
    _require_agreed(run.config.path.name, run.config.read(), agreed)
    return agreed


def _require_agreed(file: str, settings: Mapping[str, Any], agreed: Mapping[str, Any]) -> None:
    """Raise StatementError for a setting that differs from what members agreed to."""
    defaults = fixed_defaults()
    # Not compared here: how the attempt began, and the terms of the statement, which verify()
    # compares with the account.
    apart = {*HOW_IT_BEGINS, *StatementSettings.key_names()}
    for key, value in agreed.items():
        if key in apart or value == AUTO:
            continue
        if key not in settings:
            if _may_be_missing(key, value, defaults):
                continue
            raise StatementError(f"{file} lacks {key}; members agreed to {key} = {value!r}")
        if settings[key] != value:
            raise StatementError(
                f"{file} has {key} = {settings[key]!r}; members agreed to a run with {key} = "
                f"{value!r}"
            )
    for key, value in defaults.items():
        if key in apart or key in agreed:
            continue
        # An app brings its own task along: members approve its code, and its run config names none.
        if key == "task" and str(settings.get(key)).startswith(OWN):
            continue
        if settings.get(key, value) != value:
            raise StatementError(
                f"{file} has {key} = {settings[key]!r}; members agreed to a run config without it, "
                f"so that {key} = {value!r}"
            )


def _may_be_missing(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    """Return whether a run's settings may lack a key of its run config.

    ``flwr run`` sends all keys that an app lists. A run takes over the sections of what it chose,
    and not those of another attack, for example. It begins only if the keys of the other sections
    are off, or have their defaults.
    """
    if key in defaults and value == defaults[key]:
        return True
    if "." not in key or key in own_defaults():  # Every run has such keys.
        return False
    return value in OFF
