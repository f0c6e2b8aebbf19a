"""One run through ``flwr run`` in Flower's simulation runtime, with the run's own exit status.

``flwr run`` exits with 0 once a run is submitted, whatever becomes of it. This launcher shows the
rounds as they come, asks Flower and the results how the run ended, says why if it failed, and
leaves no process behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape

from fedif_flower.devices import select_device
from fedif_flower.errors import ConfigError, FedIFError, TrainingFailedError
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.folder import RunFolder, files_of_rounds
from fedif_flower.run.lock import hold_directory
from fedif_flower.run.preflight import with_free_folder
from fedif_flower.run.report import print_summary, require_complete
from fedif_flower.run.resume import as_pairs, farewell
from fedif_flower.run.round_progress import RoundProgress
from fedif_flower.run.rows import headline, read_rows
from fedif_flower.runtime.local_superlink import LaunchError, LocalSuperLink
from fedif_flower.runtime.processes import StopRequest, available_cpus, own_command
from fedif_flower.settings import AUTO, Scalar, parse_overrides

REPOSITORY = Path(__file__).resolve().parents[2]


class Interrupted(LaunchError):  # noqa: N818
    """The launcher was asked to stop, by Ctrl-C or a signal."""

    def __init__(self, text: str, signal_number: int) -> None:
        super().__init__(text)
        self.exit_code = 128 + signal_number


@dataclass(frozen=True)
class Launch:
    """What is handed to ``flwr run``, checked before anything starts."""

    run_config: Mapping[str, Scalar]
    federation_config: Mapping[str, Scalar]
    run_dir: Path
    num_rounds: int

    @property
    def log_path(self) -> Path:
        """Where everything that Flower and the app print goes."""
        return RunFolder(self.run_dir).log


def prepare(
    overrides: Mapping[str, Scalar], *, cpus_per_client: int = 1, gpus_per_client: float = 0.0
) -> Launch:
    """Check a run's configuration and make it independent of any working directory.

    Parameters
    ----------
    overrides : Mapping[str, Scalar]
        Run-config keys that differ from ``[tool.flwr.app.config]``.
    cpus_per_client : int
        CPUs that Ray reserves for a client, >= 1; decides how many clients train at once.
    gpus_per_client : float
        Share of a GPU that Ray reserves for a client, >= 0.

    Returns
    -------
    Launch
        Everything that :func:`execute` needs.

    Raises
    ------
    ConfigError
        Naming the key or option, its value and what is allowed.
    """
    if not (REPOSITORY / "pyproject.toml").is_file():
        raise ConfigError(
            f"{REPOSITORY} has no pyproject.toml, but `flwr run` needs the source tree: "
            "install fedif-flower from a checkout with `pip install -e .`"
        )
    config = with_free_folder(RunConfig.from_run_config({**default_run_config(), **overrides}))
    select_device(config.device)
    # Flower's processes run elsewhere, so no path may depend on the working directory.
    run_config = dict(overrides)
    run_config["num-clients"] = config.num_clients
    run_config["output-dir"] = str(config.run_dir.parent)
    run_config["run-name"] = config.run_name
    for key, path in (("data-dir", config.data_dir), ("resume", config.resume)):
        if path not in ("", AUTO):
            run_config[key] = str(Path(path).expanduser().absolute())

    federation_config: dict[str, Scalar] = {
        "num-supernodes": config.num_clients,
        "client-resources-num-cpus": cpus_per_client,
        "client-resources-num-gpus": gpus_per_client,
    }
    # A cluster that RAY_ADDRESS names has CPUs and GPUs of its own.
    if not os.environ.get("RAY_ADDRESS"):
        cpus, gpus = available_cpus(), torch.cuda.device_count()
        if cpus_per_client > cpus:
            raise ConfigError(f"--cpus-per-client {cpus_per_client}: this machine has {cpus}")
        if gpus_per_client > gpus:
            raise ConfigError(f"--gpus-per-client {gpus_per_client}: this machine has {gpus}")
        # Ray starts an actor per slot; more than there are clients in a round only cost memory.
        wanted = config.clients_per_round * cpus_per_client
        federation_config["init-args-num-cpus"] = min(cpus, wanted)
    return Launch(run_config, federation_config, config.run_dir, config.num_server_rounds)


def execute(launch: Launch, console: Console) -> None:
    """Run to the end, then leave no process and no temporary file behind.

    Parameters
    ----------
    launch : Launch
        From :func:`prepare`; the results are in its ``run_dir`` afterwards.
    console : Console
        Where progress is shown.

    Raises
    ------
    Interrupted
        If a signal asked for an end.
    LaunchError
        If the run failed, whatever ``flwr run`` says.
    """
    folder = RunFolder(launch.run_dir)
    summary, rounds = _ResultFile(folder.summary.path), _ResultFile(folder.rounds.path)
    with contextlib.ExitStack() as stack:
        # Two locks: the ServerApp, in a process of its own, takes the run's.
        stack.enter_context(hold_directory(launch.run_dir, "launch"))
        with hold_directory(launch.run_dir):
            pass
        try:
            log = stack.enter_context(launch.log_path.open("w+b"))
        except OSError as error:
            raise LaunchError(f"cannot write into output-dir: {error}") from error
        stop = stack.enter_context(StopRequest())

        def check_stop() -> None:
            if stop.signal_number is not None:
                rows, going_on = rounds.rows(), launch.run_config.get("resume")
                # Until there are rows of this run, checkpoints may be those of a replaced one.
                found = files_of_rounds(folder.checkpoints) if rows or going_on else {}
                saved = max(found, default=0)
                last = int(rows[-1]["round"]) if rows else saved
                said = farewell(folder.path.name, last, launch.num_rounds, saved, _again)
                raise Interrupted(said, stop.signal_number)

        with LocalSuperLink(log, check_stop) as superlink:
            stream = superlink.submit(REPOSITORY, launch.run_config, launch.federation_config)
            with RoundProgress(launch.num_rounds, console) as progress:
                shown = (_Rounds(rounds, progress), _Warnings(log, console))
                running = True
                while running:
                    running = stream.poll() is None
                    superlink.check()
                    for part in shown:
                        part.show()
                    time.sleep(0.5 if running else 0.0)
            if stream.returncode != 0:
                raise LaunchError(f"`flwr run` failed: {superlink.last_words()}")
            status, details = superlink.outcome()
            if status != "finished:completed":
                if summary.is_new():  # it came to its end, and was no good
                    print_summary(launch.run_dir, console)
                    with contextlib.suppress(TrainingFailedError):  # Flower knows it.
                        require_complete(launch.run_dir)
                reason = _reason(details, superlink.printed())
                raise LaunchError(reason or f"Flower reports {status!r}")
    if not summary.is_new():
        raise LaunchError("the ServerApp ended before it wrote summary.json")


class _ResultFile:
    """A file of results; one that an earlier run left behind does not count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._earlier = self._modified()

    def is_new(self) -> bool:
        return self._modified() not in (None, self._earlier)

    def rows(self) -> list[dict[str, str]]:
        return read_rows(self._path) if self.is_new() else []

    def _modified(self) -> int | None:
        return self._path.stat().st_mtime_ns if self._path.exists() else None


class _Rounds:
    """Shows the lines of rounds.csv that are new."""

    def __init__(self, results: _ResultFile, progress: RoundProgress) -> None:
        self._results = results
        self._progress = progress
        self._shown = 0

    def show(self) -> None:
        rows = self._results.rows()
        for row in rows[self._shown :]:
            self._progress.show(int(row["round"]), headline(row))
        self._shown = len(rows)


class _Warnings:
    """Shows what the package warned of in Flower's processes, each sentence once."""

    def __init__(self, log: IO[bytes], console: Console) -> None:
        self._descriptor = log.fileno()
        self._console = console
        self._read = 0
        self._shown: set[str] = set()

    def show(self) -> None:
        # Read by descriptor: others write to the same file.
        size = os.fstat(self._descriptor).st_size
        content = os.pread(self._descriptor, size - self._read, self._read)
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        for warning in re.findall(r"fedif (?:WARNING|ERROR): .*", whole.decode(errors="replace")):
            # Ray adds how many other actors printed the same.
            sentence = re.split(r"\x1b\[| \[repeated ", warning)[0]
            if sentence not in self._shown:
                self._shown.add(sentence)
                self._console.print(sentence, soft_wrap=True, markup=False, highlight=False)


def _again(added: Mapping[str, Scalar]) -> str:
    return own_command("-c", as_pairs(added))


def _reason(details: str, log: str) -> str:
    """Return the first line of Flower's status details, with the exception's type if logged."""
    message = details.removeprefix("Simulation failed with exception:").strip().split("\n")[0]
    logged = re.search(rf"^(?:\w+\.)*(\w+: {re.escape(message)})$", log, re.MULTILINE)
    return logged[1] if message and logged else message


def run(
    config: Annotated[
        list[str] | None, typer.Option("-c", "--run-config", help="KEY=VALUE ..., as for flwr run")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="simulated clients (num-clients)")] = None,
    cpus_per_client: Annotated[int, typer.Option(help="decides how many run at once", min=1)] = 1,
    gpus_per_client: Annotated[
        float, typer.Option(help="share of a GPU for each client", min=0.0)
    ] = 0.0,
    output_dir: Annotated[str | None, typer.Option(help="where results go")] = None,
    run_name: Annotated[str | None, typer.Option(help="their folder there")] = None,
) -> None:
    """Simulate one federation through `flwr run`; exit with 0 only if it completed.

    Exit status 3: it came to its end, but is incomplete.
    """
    overrides = parse_overrides(" ".join(config or []))
    options = {"num-clients": clients, "output-dir": output_dir, "run-name": run_name}
    overrides |= {key: value for key, value in options.items() if value is not None}
    launch = prepare(overrides, cpus_per_client=cpus_per_client, gpus_per_client=gpus_per_client)
    console = Console()
    console.print(f"Log: {launch.log_path}", soft_wrap=True, highlight=False)
    try:
        execute(launch, console)
    except Interrupted:
        raise
    except LaunchError as error:
        raise LaunchError(f"{error} (log: {launch.log_path})") from error
    print_summary(launch.run_dir, console)


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    try:
        typer.run(run)
    except FedIFError as error:
        Console(stderr=True).print("[bold red]error:[/]", escape(str(error)), soft_wrap=True)
        raise SystemExit(getattr(error, "exit_code", 1)) from None


if __name__ == "__main__":
    main()
