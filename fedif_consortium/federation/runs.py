"""A run of a deployed federation, followed to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedif_consortium.federation.flower import FlowerCommandError
from fedif_consortium.federation.programs import PROJECT
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.foreign import read_toml
from fedif_flower.settings import parse_overrides, unknown_key

ATTEMPTS = 10  # Of asking how a run is: a busy host may need a while.
PAUSE = 3.0


class Runner(Protocol):
    """Where runs go on: Flower's command, or what stands for it."""

    connection: str

    def submit(self, app: Path, run_config: str) -> int:
        """Begin a run; return its id."""

    def follow(self, run_id: int, shown: int) -> int:
        """Show a run's log after its first bytes; return how many were shown by now."""

    def runs(self, *arguments: object) -> list[dict[str, Any]]:
        """Return runs; ``--run-id ID``: that one."""


def app_folder(given: Path | None) -> Path:
    """Return the folder of the app to run: the one given, else the checkout of this package.

    Raises
    ------
    ConfigError
        If it holds no app of Flower.
    """
    folder = given or PROJECT
    try:
        content = read_toml(folder / "pyproject.toml")
        content["tool"]["flwr"]["app"]
    except (ConfigError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{folder} has no pyproject.toml with an app of Flower: name the app's folder with "
            "--app"
        ) from error
    return folder.absolute()


def require_known_keys(app: Path, run_config: str) -> None:
    """Raise ConfigError, naming the first key that an app's ``[tool.flwr.app.config]`` lacks."""
    if run_config.endswith(".toml"):
        given = read_toml(Path(run_config))
    else:
        given = dict(parse_overrides(run_config))
    content = read_toml(app / "pyproject.toml")
    known = _flat(content["tool"]["flwr"]["app"].get("config", {}))
    for key in _flat(given):
        if key not in known:
            raise ConfigError(unknown_key(key, list(known)))


def _flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the keys of a run config as Flower has them: those of a table after its name."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, Mapping)
        found |= _flat(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return found


def run_to_end(runner: Runner, app: Path, run_config: str, say: Callable[[str], None]) -> None:
    """Submit a run and follow it; return once it completed.

    Raises
    ------
    ConfigError
        If the app has no such key.
    TrainingFailedError
        If it ended in another way, with Flower's words for it.
    FlowerCommandError
        If the SuperLink did not take the run, or has not answered for a while.
    KeyboardInterrupt
        At Ctrl-C: the run goes on.
    """
    require_known_keys(app, run_config)
    run_id = runner.submit(app, run_config)
    say(f"run {run_id}")
    name, shown = runner.connection, 0
    try:
        while True:
            # Exit statuses of Flower's own commands say nothing about a run's outcome.
            shown = runner.follow(run_id, shown)
            run = _asked(runner, run_id)
            status, details = str(run["status"]), str(run["status-details"])
            if status.startswith("finished:completed"):
                return
            if status.startswith("finished:"):
                raise TrainingFailedError(f"run {run_id}: {status} {details}".rstrip())
            time.sleep(1.0)
    except KeyboardInterrupt:
        say(
            f"run {run_id} goes on; follow it: flwr log {run_id} {name}, end it: "
            f"flwr stop {run_id} {name}"
        )
        raise


def _asked(runner: Runner, run_id: int) -> dict[str, Any]:
    """Return how a run is, from a SuperLink that may not answer at once."""
    for left in reversed(range(ATTEMPTS)):
        try:
            (run,) = runner.runs("--run-id", run_id)
        except FlowerCommandError:
            if not left:
                raise
            time.sleep(PAUSE)
        else:
            break
    return run
