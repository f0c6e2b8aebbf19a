"""Starts Flower's own programs, calls its commands, and reads their answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import typer

from fedif_consortium.federation.files import to_toml
from fedif_flower.errors import ConfigError, FedIFError, TrainingFailedError
from fedif_flower.foreign import read_toml, refused_as, visible
from fedif_flower.settings import Scalar, parse_overrides, take_section, unknown_key
from fedif_flower.signals import ended_as_interrupted
from fedif_flower.storage import exclusive_lock, write_atomically

PROJECT = Path(__file__).resolve().parents[2]
ATTEMPTS = 10  # How often a run's state is asked for in a row: a busy host may need a while.
PAUSE = 3.0  # Seconds between two tries.
UNREGISTERED = "unregistered"  # Flower's status of nodes whose registration has ended.


class FlowerCommandError(FedIFError):
    """A command of ``flwr`` failed; the message is its own."""


def flower_environment() -> dict[str, str]:
    """Return the environment for Flower's programs, which come from this installation.

    Flower installs no packages for an app, whatever the app says: those that are here are used.
    """
    scripts = sysconfig.get_path("scripts")
    path = os.environ.get("PATH", "")
    if scripts not in path.split(os.pathsep):
        path = os.pathsep.join([scripts, path])
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        # Seconds between two looks for a task; they add to the length of every round.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **os.environ,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": path,
    }


def become(module: str, options: Sequence[str], folder: Path, **more: str) -> NoReturn:
    """Replace this process by one of Flower's programs; only its user can read files that it makes.

    Parameters
    ----------
    module : str
        The module of this project that runs the program.
    options : sequence of str
        The program's options.
    folder : Path
        The working folder, to which relative paths in the options refer.
    **more : str
        Further variables of its environment.
    """
    python_path = str(PROJECT)  # So that a checkout works that is not installed.
    if os.environ.get("PYTHONPATH"):
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    environment = {**flower_environment(), **more, "PYTHONPATH": python_path}
    os.chdir(folder)
    os.umask(0o077)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module, *options], environment)


def to_arguments(options: Mapping[str, str]) -> list[str]:
    """Return options and their values as a list of command line arguments."""
    arguments = []
    for option, value in options.items():
        arguments += [option, value]
    return arguments


def connect(name: str, address: str, authority: Path) -> None:
    """Add a connection to a SuperLink to the configuration of Flower's commands, if it is missing.

    Parameters
    ----------
    name : str
        The connection's name.
    address : str
        ``HOST:PORT`` of the SuperLink.
    authority : Path
        The certificate that the connection trusts.

    Raises
    ------
    ConfigError
        If the configuration has another connection of this name, or cannot be read or made.
    """
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    path = Path(home) / "config.toml"
    connection = {"address": address, "root-certificates": str(authority.absolute())}
    if not _is_there(path):
        _begin_configuration(path)
    if name not in _connections(path):
        # Another command may add one at the same time: each reads what the one before has written.
        with exclusive_lock(path.with_name(".config.toml.lock")):
            if name not in _connections(path):
                _add_connection(path, name, connection)
    if _connections(path)[name] != connection:
        raise ConfigError(
            f"{path} has another connection {name!r} than to {address} by {authority}: "
            "remove it there, or choose another name"
        )


def _connections(path: Path) -> dict[str, Any]:
    """Return the connections in the configuration of Flower's commands, by name."""
    return take_section(read_toml(path), "superlink")


def _add_connection(path: Path, name: str, connection: Mapping[str, str]) -> None:
    """Add a connection at the end of the configuration of Flower's commands."""
    with refused_as(ConfigError, f"{path} cannot be read"):
        text = path.read_text()
    section = to_toml("", {"superlink": {name: connection}})
    write_atomically(path, f"{text}\n{section}", 0o644)


def _begin_configuration(path: Path) -> None:
    """Have Flower make its configuration file, with the entries that it needs itself.

    Raises
    ------
    ConfigError
        If it does not; the message has the last line that it wrote to stderr.
    """
    process = _flwr("config", "list", capture_output=True)
    if _is_there(path):
        return
    *_, reason = process.stderr.strip().splitlines() or ["it said nothing"]
    raise ConfigError(
        f"cannot write {path}: set FLWR_HOME to a folder of this user "
        f"(`flwr config list`: {visible(reason.strip())})"
    )


def _is_there(path: Path) -> bool:
    """Return whether there is a file that this user can see."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def config_text(config: Mapping[str, Scalar]) -> str:
    """Return the settings of a run or a node in the form that Flower's commands read.

    Raises
    ------
    ConfigError
        If Flower could not read a value, because of its type or of quotes in it.
    """
    pairs = []
    for key, value in config.items():
        quoted = json.dumps(value, ensure_ascii=False)
        pairs.append(f"{key}={quoted}")
    text = " ".join(pairs)
    parse_overrides(text)  # Raises ConfigError for text that Flower would refuse.
    return text


class Flower:
    """Calls the command ``flwr`` for one SuperLink.

    Every method but :meth:`follow` raises FlowerCommandError if the command fails.

    Parameters
    ----------
    connection : str
        The name of a connection in Flower's ``config.toml``.
    """

    def __init__(self, connection: str) -> None:
        self.connection = connection

    def register(self, key: Path, name: str) -> str:
        """Register a node by its public key's file, in the format of OpenSSH; return its id."""
        answer = self._call("supernode", "register", key, self.connection, "--name", name)
        return str(answer["node-id"])

    def unregister(self, node_id: str) -> None:
        """End a node's registration, so that the SuperLink refuses its key."""
        self._call("supernode", "unregister", node_id, self.connection)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the SuperLink's information about every node, by node id."""
        answer = self._call("supernode", "list", self.connection)
        return {str(node["node-id"]): node for node in answer["nodes"]}

    def runs(self, *arguments: object) -> list[dict[str, Any]]:
        """Return the SuperLink's information about its runs, the latest first.

        ``arguments`` are further ones of ``flwr list``.
        """
        return list(self._call("list", self.connection, *arguments)["runs"])

    def submit(self, app: Path, run_config: str) -> int:
        """Submit a run of the app in a folder; return the run's id."""
        options: list[str] = []
        if run_config:
            options = ["--run-config", run_config]
        answer = self._call("run", app, self.connection, *options)
        return int(answer["run-id"])

    def follow(self, run_id: int) -> None:
        """Show a run's log until the run ends or the connection is lost; ask :meth:`runs` which."""
        _flwr("log", run_id, self.connection, "--stream", stderr=subprocess.DEVNULL)

    def _call(self, *arguments: object) -> dict[str, Any]:
        """Run a command, and return its answer, which is JSON.

        Raises
        ------
        FlowerCommandError
            If the command fails, or its answer is no JSON.
        """
        process = _flwr(*arguments, "--format", "json", capture_output=True)
        reason = ""
        answer = _answer_in(process.stdout)
        if answer is not None:
            if process.returncode == 0 and answer.get("success", True):
                return answer
            reason = answer.get("error-message", "")
        output = str(reason or process.stderr or process.stdout)
        in_one_line = " ".join(output.split())
        command = " ".join(str(argument) for argument in arguments[:2])
        raise FlowerCommandError(f"`flwr {command}` failed: {in_one_line or 'it said nothing'}")


def has_ended(node: Mapping[str, Any]) -> bool:
    """Return whether a node's registration has ended, by the SuperLink's information about it."""
    return node.get("status") == UNREGISTERED


def _answer_in(output: str) -> dict[str, Any] | None:
    """Return the JSON object with which a command's output ends; ``None`` if there is none.

    Flower may write lines of its own before it, and these may have braces too.
    """
    for match in re.finditer(r"\{", output):
        with suppress(ValueError):
            return dict(json.loads(output[match.start() :]))
    return None


def _flwr(*arguments: object, **output: Any) -> subprocess.CompletedProcess[str]:
    """Run ``flwr`` to its end; ``output`` has arguments of ``subprocess.run`` for its output."""
    return subprocess.run(
        ["flwr", *(str(argument) for argument in arguments)],
        check=False,
        env=flower_environment(),
        stdin=subprocess.DEVNULL,
        text=True,
        **output,
    )


def run_to_end(
    flower: Flower,
    app: Path,
    run_config: str,
    lock: Path,
    *,
    queue: bool = False,
    beside: bool = False,
) -> None:
    """Submit a run, show its log, and return when it has completed.

    Parameters
    ----------
    flower : Flower
        The command of the SuperLink that takes the run.
    app : Path
        The app's folder.
    run_config : str
        The run config, as ``flwr run`` takes it: pairs, or a TOML file. Quotes that a shell has
        removed are put back.
    lock : Path
        Locked while a run is submitted, so that a second command at the same time sees the first
        one's run.
    queue : bool
        Whether to wait until other runs have ended.
    beside : bool
        Whether to begin beside other runs: nodes then train for all of them at once.

    Raises
    ------
    ConfigError
        If the app lacks a key of ``run_config``, another run goes on, or both ``queue`` and
        ``beside`` are set.
    TrainingFailedError
        If the run ended without completing; the message has Flower's words for it.
    FlowerCommandError
        If the SuperLink did not take the run, or has not answered for a while.
    KeyboardInterrupt
        At Ctrl-C, or a signal to end this process. The run goes on.
    """
    if queue and beside:
        raise ConfigError("--queue waits for other runs, --beside does not; allowed: one of them")
    checked_config = _checked_config(app, run_config)
    with ended_as_interrupted():
        run_id = _submit(flower, app.absolute(), checked_config, lock, queue=queue, beside=beside)
        typer.echo(f"run {run_id}")
        sys.stdout.flush()
        try:
            _follow(flower, run_id)
        except (KeyboardInterrupt, FlowerCommandError):
            words = f"{run_id} {flower.connection}"
            typer.echo(
                f"run {run_id} goes on; follow it: flwr log {words}, end it: flwr stop {words}"
            )
            raise


def _submit(
    flower: Flower, app: Path, run_config: str, lock: Path, *, queue: bool, beside: bool
) -> int:
    """Submit a run when no other run goes on, or at once if ``beside``; return its id."""
    waiting: list[str] = []
    while True:
        with exclusive_lock(lock):
            others: list[str] = []
            if not beside:
                # A wait of hours shall not end because one answer did not come.
                others = _unfinished(flower, attempts=ATTEMPTS if waiting else 1)
            if not others:
                return flower.submit(app, run_config)
        others_named = f"run {', '.join(others)}"
        if not queue:
            raise ConfigError(
                f"{others_named} has not finished, and nodes would train for both at once: --queue "
                "waits for its end (a minute where its server has died), --beside does not"
            )
        if others != waiting:
            typer.echo(f"waiting for the end of {others_named}")
            sys.stdout.flush()
            waiting = others
        time.sleep(PAUSE)


def _unfinished(flower: Flower, attempts: int) -> list[str]:
    """Return the ids of the runs that have not finished; some may not have begun.

    The SuperLink is asked up to ``attempts`` times, until it answers.
    """
    attempts_left = attempts
    while True:
        attempts_left -= 1
        try:
            return [str(run["run-id"]) for run in flower.runs() if not _is_finished(run)]
        except FlowerCommandError:
            if not attempts_left:
                raise
        time.sleep(PAUSE)


def _is_finished(run: Mapping[str, Any]) -> bool:
    return str(run["status"]).startswith("finished:")


def _follow(flower: Flower, run_id: int) -> None:
    """Show a run's log until the run ends; raise TrainingFailedError unless it completed."""
    attempts_left = ATTEMPTS
    while True:
        # The exit status of this command says nothing about the run's outcome, so ask for it.
        flower.follow(run_id)
        try:
            run = flower.runs("--run-id", run_id)[0]
        except FlowerCommandError:
            attempts_left -= 1
            if not attempts_left:
                raise
        else:
            attempts_left = ATTEMPTS
            if run["status"].startswith("finished:completed"):
                return
            if _is_finished(run):
                if run["status"].startswith("finished:stopped"):
                    raise TrainingFailedError(
                        f"run {run_id} was stopped; if rounds are left, the same command with "
                        'resume="auto" goes on'
                    )
                outcome = f"{run['status']} {run['status-details']}".removesuffix(" N/A").rstrip()
                raise TrainingFailedError(
                    f"run {run_id}: {outcome}; `fedif federation status` says whether all is well "
                    'now. If rounds are left, the same command with resume="auto" goes on'
                )
        time.sleep(PAUSE)


def _checked_config(app: Path, run_config: str) -> str:
    """Return a run config in the form that Flower reads, after a check of its keys.

    Raises
    ------
    ConfigError
        If an app's ``[tool.flwr.app.config]`` lacks a key, or a file cannot be read.
    """
    is_file = run_config.endswith(".toml") and "=" not in run_config
    if is_file:
        overrides = read_toml(Path(run_config))
        checked = run_config
    else:
        overrides = parse_overrides(run_config)
        checked = config_text(overrides)
    pyproject = read_toml(app / "pyproject.toml")
    with refused_as(ConfigError, f"{app} is no app of Flower; name its folder with --app"):
        app_config = pyproject["tool"]["flwr"]["app"].get("config", {})
        known_keys = list(_keys(app_config))
        for key in _keys(overrides):
            if key not in known_keys:
                raise ConfigError(unknown_key(key, known_keys))
    return checked


def _keys(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of a run config with dots, as Flower has them: ``TABLE.KEY``."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{before}{key}.")
        else:
            yield before + key
