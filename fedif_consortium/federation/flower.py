"""Flower's own programs: how they are started, called, and what they answer."""

from __future__ import annotations

import json
import os
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
ATTEMPTS = 10  # Of asking how a run is: a busy host may need a while.
PAUSE = 3.0


class FlowerCommandError(FedIFError):
    """``flwr`` did not do what it was asked for; the message is its own."""


def flower_environment() -> dict[str, str]:
    """Return this process's environment with Flower's programs in it: this installation's.

    Packages come from here, not from a registry at every run; the app decides nothing of that.
    """
    scripts = sysconfig.get_path("scripts")
    path = os.environ.get("PATH", "")
    if scripts not in path.split(os.pathsep):
        path = os.pathsep.join([scripts, path])
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        # How often a host looks for a task, in seconds: part of every round's length.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **os.environ,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": path,
    }


def become(module: str, options: Sequence[str], folder: Path, **more: str) -> NoReturn:
    """Run one of Flower's programs in this process's place; its files are its owner's alone.

    Parameters
    ----------
    module : str
        A module of this package that runs the program.
    options : sequence of str
        The program's options.
    folder : Path
        Where it works: relative paths in its options are below this.
    **more : str
        Variables of its environment.
    """
    python_path = str(PROJECT)  # From a checkout that is not installed, too.
    if os.environ.get("PYTHONPATH"):
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    environment = {**flower_environment(), **more, "PYTHONPATH": python_path}
    os.chdir(folder)
    os.umask(0o077)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module, *options], environment)


def to_arguments(options: Mapping[str, str]) -> list[str]:
    """Return a program's options with their values, as it is started with them."""
    arguments = []
    for option, value in options.items():
        arguments += [option, value]
    return arguments


def connect(name: str, address: str, authority: Path) -> None:
    """Tell Flower's commands about a SuperLink, by a name.

    Raises
    ------
    ConfigError
        If the name is another SuperLink's already.
    """
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    path = Path(home) / "config.toml"
    connection = {"address": address, "root-certificates": str(authority.absolute())}
    if not _is_there(path):
        _begin_configuration(path)
    existing = take_section(read_toml(path), "superlink").get(name)
    if existing is None:
        section = to_toml("", {"superlink": {name: connection}})
        write_atomically(path, f"{path.read_text()}\n{section}", 0o644)
    elif existing != connection:
        raise ConfigError(
            f"{path} has another connection {name!r} than to {address} by {authority}: "
            "remove it there, or choose another name"
        )


def _begin_configuration(path: Path) -> None:
    """Have Flower begin its file of connections, with what it needs itself.

    Raises
    ------
    ConfigError
        If it does not, with the last line that it said.
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
    """Return whether there is a file, in a folder that this user can look into."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def config_text(config: Mapping[str, Scalar]) -> str:
    """Return settings of a run or a node as Flower's commands take them: strings quoted.

    Raises
    ------
    ConfigError
        If a value is of a type, or has quotes, that Flower cannot take there.
    """
    pairs = []
    for key, value in config.items():
        quoted = json.dumps(value, ensure_ascii=False)
        pairs.append(f"{key}={quoted}")
    text = " ".join(pairs)
    parse_overrides(text)  # Raises what Flower would raise.
    return text


class Flower:
    """``flwr``, with the name of a connection.

    Parameters
    ----------
    connection : str
        One of Flower's ``config.toml``.
    """

    def __init__(self, connection: str) -> None:
        self.connection = connection

    def register(self, key: Path, name: str) -> str:
        """Let the node with this public key, a file as OpenSSH writes it, in; return its id."""
        answer = self._call("supernode", "register", key, self.connection, "--name", name)
        return str(answer["node-id"])

    def unregister(self, node_id: str) -> None:
        """End a node's registration: its key opens nothing any more."""
        self._call("supernode", "unregister", node_id, self.connection)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return what the SuperLink says of every node, by id."""
        answer = self._call("supernode", "list", self.connection)
        return {str(node["node-id"]): node for node in answer["nodes"]}

    def runs(self, *arguments: object) -> list[dict[str, Any]]:
        """Return what the SuperLink says of its runs, the latest first."""
        return list(self._call("list", self.connection, *arguments)["runs"])

    def submit(self, app: Path, run_config: str) -> int:
        """Begin a run; return its id."""
        options: list[str] = []
        if run_config:
            options = ["--run-config", run_config]
        answer = self._call("run", app, self.connection, *options)
        return int(answer["run-id"])

    def follow(self, run_id: int) -> None:
        """Show a run's log until it ends or the connection is lost, which :meth:`runs` tells."""
        _flwr("log", run_id, self.connection, "--stream", stderr=subprocess.DEVNULL)

    def _call(self, *arguments: object) -> dict[str, Any]:
        """Return the JSON that a command answers with."""
        process = _flwr(*arguments, "--format", "json", capture_output=True)
        reason = ""
        with suppress(ValueError):
            start = process.stdout.index("{")  # Flower may write lines of its own before.
            answer = json.loads(process.stdout[start:])
            if process.returncode == 0 and answer.get("success", True):
                return dict(answer)
            reason = answer.get("error-message", "")
        output = str(reason or process.stderr or process.stdout)
        in_one_line = " ".join(output.split())
        command = " ".join(str(argument) for argument in arguments[:2])
        raise FlowerCommandError(f"`flwr {command}` failed: {in_one_line or 'it said nothing'}")


def _flwr(*arguments: object, **output: Any) -> subprocess.CompletedProcess[str]:
    """Run Flower's command to its end; ``output`` says where its output goes."""
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
    """Submit a run and follow it; return once it completed.

    Parameters
    ----------
    flower : Flower
        Where it goes on.
    app : Path
        Folder of the app.
    run_config : str
        As ``flwr run`` takes it; a shell may have taken the quotes of a word away.
    lock : Path
        Held while a run is submitted, so that of two at once the second sees the first.
    queue : bool
        Wait for runs that go on there.
    beside : bool
        Run beside them: nodes train for both at once.

    Raises
    ------
    ConfigError
        If the app has no such key, or another run goes on.
    TrainingFailedError
        If it ended in another way, with Flower's words for it.
    FlowerCommandError
        If the SuperLink did not take the run, or has not answered for a while.
    KeyboardInterrupt
        At Ctrl-C, and at a signal to end: the run goes on.
    """
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
    """Begin a run once no other one goes on, or beside them; return its id."""
    waiting: list[str] = []
    while True:
        with exclusive_lock(lock):
            others: list[str] = []
            if not beside:
                others = _unfinished(flower)
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


def _unfinished(flower: Flower) -> list[str]:
    """Return the ids of the runs that go on, or are about to."""
    return [str(run["run-id"]) for run in flower.runs() if not _is_finished(run)]


def _is_finished(run: Mapping[str, Any]) -> bool:
    return str(run["status"]).startswith("finished:")


def _follow(flower: Flower, run_id: int) -> None:
    """Show a run's log until it ended, and return if it completed."""
    attempts_left = ATTEMPTS
    while True:
        # Exit statuses of Flower's own commands say nothing about a run's outcome.
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
    """Return a run config as Flower reads it.

    Raise ConfigError, naming the first key that an app's ``[tool.flwr.app.config]`` lacks.
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
    """Yield the keys of a run config as Flower has them: those of a table after its name."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{before}{key}.")
        else:
            yield before + key
