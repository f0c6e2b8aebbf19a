"""Flower's own programs: how they are started, called, and what they answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import typer

from fedif_flower.errors import ConfigError, FedIFError, TrainingFailedError
from fedif_flower.foreign import read_toml
from fedif_flower.settings import parse_overrides, unknown_key
from fedif_flower.storage import make_folder, write_atomically

PROJECT = Path(__file__).resolve().parents[2]
ATTEMPTS = 10  # Of asking how a run is: a busy host may need a while.
PAUSE = 3.0


class FlowerCommandError(FedIFError):
    """``flwr`` did not do what it was asked for; the message is its own."""


def flower_environment() -> dict[str, str]:
    """Return this process's environment with Flower's programs in it: this installation's.

    Packages come from here, not from a registry at every run; the app decides nothing of that.
    """
    own, path = sysconfig.get_path("scripts"), os.environ.get("PATH", "")
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        # How often a host looks for a task, in seconds: part of every round's length.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **os.environ,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": path if own in path.split(os.pathsep) else os.pathsep.join([own, path]),
    }


@dataclass(frozen=True)
class Program:
    """A module of this package that runs one of Flower's programs in this process's place.

    Parameters
    ----------
    module : str
        Its name.
    options : sequence of str
        What it is given.
    folder : Path
        Where it works: relative paths in its options are below this.
    more : mapping of str to str
        Of its environment.
    """

    module: str
    options: Sequence[str]
    folder: Path
    more: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> NoReturn:
        """Become the program; what it writes is for its owner alone.

        Raises
        ------
        ConfigError
            If its folder is not there.
        """
        environment = {**flower_environment(), **self.more}
        # From a checkout that is not installed, too.
        paths = [str(PROJECT), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            os.chdir(self.folder)
            os.umask(0o077)
            sys.stdout.flush()
            words = [sys.executable, "-m", self.module, *self.options]
            os.execve(sys.executable, words, environment)
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}") from error


def connect(name: str, address: str, authority: Path) -> None:
    """Tell Flower's commands about a SuperLink, by a name.

    Raises
    ------
    ConfigError
        If the name is another SuperLink's already.
    """
    home = os.environ.get("FLWR_HOME")
    path = (Path(home) if home else Path.home() / ".flwr") / "config.toml"
    wanted = {"address": address, "root-certificates": str(authority.absolute())}
    written = path.read_text() if path.exists() else ""
    try:
        known = tomllib.loads(written).get("superlink", {}).get(name)
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if known is None:
        section = "".join(f"{key} = {json.dumps(value)}\n" for key, value in wanted.items())
        make_folder(path.parent)
        write_atomically(path, f"{written}\n[superlink.{json.dumps(name)}]\n{section}", 0o644)
    elif known != wanted:
        raise ConfigError(
            f"{path} has a connection {name!r} to {known.get('address')!r}, not to {address!r}: "
            "remove it there, or choose another name"
        )


class Flower:
    """``flwr``, with the name of a connection.

    Parameters
    ----------
    connection : str
        One of Flower's ``config.toml``.
    """

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.environment = flower_environment()

    def register(self, public_key: Path, name: str) -> str:
        """Let the node with this key in; return its id."""
        answer = self._call("supernode", "register", public_key, self.connection, "--name", name)
        return str(answer["node-id"])

    def unregister(self, node_id: str) -> None:
        """End a node's registration: its key opens nothing any more."""
        self._call("supernode", "unregister", node_id, self.connection)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return what the SuperLink says of every node, by id."""
        found = self._call("supernode", "list", self.connection)["nodes"]
        return {str(node["node-id"]): node for node in found}

    def runs(self, *arguments: object) -> list[dict[str, Any]]:
        """Return what the SuperLink says of its runs, the latest first."""
        return list(self._call("list", self.connection, *arguments)["runs"])

    def submit(self, app: Path, run_config: str) -> int:
        """Begin a run; return its id."""
        given = ["--run-config", run_config] if run_config else []
        return int(self._call("run", app, self.connection, *given)["run-id"])

    def follow(self, run_id: int, shown: int) -> int:
        """Show a run's log while it goes on, and return how many bytes of it were shown by now.

        ``flwr log`` may lose its connection before the run ends, and begins with the first line
        again: what was shown stays unsaid, and so do its complaints. Whether the SuperLink is
        there, :meth:`runs` tells.
        """
        told = 0
        with subprocess.Popen(
            self._command("log", run_id, self.connection, "--stream"),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            while piece := os.read(process.stdout.fileno(), 65536):
                sys.stdout.buffer.write(piece[max(shown - told, 0) :])
                sys.stdout.buffer.flush()
                told += len(piece)
        return max(shown, told)

    def _call(self, *arguments: object) -> dict[str, Any]:
        """Return the JSON that a command answers with."""
        done = subprocess.run(
            self._command(*arguments, "--format", "json"),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        reason = ""
        with suppress(ValueError):
            answer = json.loads(done.stdout[done.stdout.index("{") :])
            if done.returncode == 0 and answer.get("success", True):
                return dict(answer)
            reason = answer.get("error-message", "")
        reason = " ".join(str(reason or done.stderr or done.stdout).split())
        words = " ".join(map(str, arguments[:2]))
        raise FlowerCommandError(f"`flwr {words}` failed: {reason or 'it said nothing'}")

    def _command(self, *arguments: object) -> list[str]:
        program = shutil.which("flwr", path=self.environment["PATH"])
        if program is None:
            raise ConfigError("'flwr' is not there: install fedif-flower in this environment")
        return [program, *map(str, arguments)]


def run_to_end(flower: Flower, app: Path, run_config: str) -> None:
    """Submit a run and follow it; return once it completed.

    Parameters
    ----------
    flower : Flower
        Where it goes on.
    app : Path
        Folder of the app.
    run_config : str
        As ``flwr run`` takes it.

    Raises
    ------
    ConfigError
        If the folder has no app, or the app no such key.
    TrainingFailedError
        If it ended in another way, with Flower's words for it.
    FlowerCommandError
        If the SuperLink did not take the run, or has not answered for a while.
    KeyboardInterrupt
        At Ctrl-C: the run goes on.
    """
    _require_known_keys(app, run_config)
    run_id, shown = flower.submit(app.absolute(), run_config), 0
    typer.echo(f"run {run_id}")
    try:
        while True:
            # Exit statuses of Flower's own commands say nothing about a run's outcome.
            shown = flower.follow(run_id, shown)
            status, details = _outcome(flower, run_id)
            if status.startswith("finished:completed"):
                return
            if status.startswith("finished:"):
                raise TrainingFailedError(f"run {run_id}: {status} {details}".rstrip())
            time.sleep(1.0)
    except KeyboardInterrupt:
        words = f"{run_id} {flower.connection}"
        typer.echo(f"run {run_id} goes on; follow it: flwr log {words}, end it: flwr stop {words}")
        raise


def _outcome(flower: Flower, run_id: int, attempts: int = ATTEMPTS) -> tuple[str, str]:
    """Return how a run is, from a SuperLink that may not answer at once."""
    try:
        run = flower.runs("--run-id", run_id)[0]
        return str(run["status"]), str(run["status-details"])
    except FlowerCommandError:
        if attempts == 1:
            raise
    time.sleep(PAUSE)
    return _outcome(flower, run_id, attempts - 1)


def _require_known_keys(app: Path, run_config: str) -> None:
    """Raise ConfigError, naming the first key that an app's ``[tool.flwr.app.config]`` lacks."""
    try:
        declared = read_toml(app / "pyproject.toml")["tool"]["flwr"]["app"].get("config", {})
    except (ConfigError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{app} has no pyproject.toml with an app of Flower: name the app's folder with --app"
        ) from error
    is_file = run_config.endswith(".toml")
    known = _keys(declared)
    for key in _keys(read_toml(Path(run_config)) if is_file else parse_overrides(run_config)):
        if key not in known:
            raise ConfigError(unknown_key(key, known))


def _keys(config: Mapping[str, Any], before: str = "") -> list[str]:
    """Return the keys of a run config as Flower has them: those of a table after its name."""
    found: list[str] = []
    for key, value in config.items():
        inner = isinstance(value, Mapping)
        found += _keys(value, f"{before}{key}.") if inner else [f"{before}{key}"]
    return found
