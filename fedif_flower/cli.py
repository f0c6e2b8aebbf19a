"""The command ``fedif``: federations on this machine, and reports on them.

PyTorch, Flower and Ray take seconds to import. So each command imports only what it uses, and
``--help`` imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedif_flower.errors import ConfigError, FedIFError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.text import one_line
from fedif_flower.new_app import DEFAULT, KINDS, write_app
from fedif_flower.run.logs import show_logs

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

    from fedif_flower.run.config import RunConfig
    from fedif_flower.run.part import RunPart
    from fedif_flower.server.record import Round

cli = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@dataclass
class Door:
    """Which parts the federations of this command line have.

    A package that extends the command line sets the names of its own parts in :data:`door`.

    Attributes
    ----------
    parts : str
        ``module:function`` that returns the parts of a run; empty: the library's own parts.
    client_parts : str
        ``module:function`` that returns the parts of a client; empty: there are none.
    """

    parts: str = ""
    client_parts: str = ""

    def run_parts(self) -> Sequence[RunPart]:
        """Return the parts of a run."""
        from fedif_flower.run.parts import chosen_parts

        return chosen_parts(self.parts)

    def client_app(self) -> ClientApp:
        """Return the clients' app."""
        from fedif_flower.client.app import task_app
        from fedif_flower.registry import parts_named

        return task_app(parts=parts_named(self.client_parts) or ())


door = Door()

Config = Annotated[
    list[str] | None, typer.Option("-c", "--run-config", help="KEY=VALUE ..., as for flwr run")
]
RunDir = Annotated[Path, typer.Argument(help="a run's folder")]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"fedif-flower {version('fedif-flower')}")
        raise typer.Exit


@cli.callback()
def fedif(
    shown: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="say which one"),
    ] = False,
) -> None:
    """Simulate federations on this machine, and report on them."""


@cli.command()
def run(
    config: Config = None,
    clients: Annotated[int | None, typer.Option(help="simulated clients (num-clients)")] = None,
    cpus_per_client: Annotated[int, typer.Option(help="decides how many train at once")] = 1,
    gpus_per_client: Annotated[float, typer.Option(help="share of a GPU for each client")] = 0.0,
    output_dir: Annotated[Path | None, typer.Option(help="where results go")] = None,
) -> None:
    """Simulate one federation and print its result.

    Exit status 0: complete, perhaps with gaps; 1: an error; 3: incomplete.
    """
    # First, so that a wrong setting is reported before anything slow is imported.
    parsed = parse_config(config, {"num-clients": clients, "output-dir": output_dir})
    from rich.progress import Progress

    from fedif_flower.run.ending import print_summary, require_complete
    from fedif_flower.runtime.simulation import simulate

    console = Console()
    with Progress(console=console, disable=not console.is_terminal) as bar:
        rounds = bar.add_task("starting Ray", total=parsed.num_server_rounds)

        def show(row: Round) -> None:
            """Move the progress bar; if there is no terminal, print a line."""
            line = f"round {row.round}/{parsed.num_server_rounds} {row.headline}".rstrip()
            bar.update(rounds, completed=row.round, description=line)
            if bar.disable:
                console.print(line, highlight=False)

        run_dir = simulate(
            parsed,
            door.client_app(),
            cpus_per_client=cpus_per_client,
            gpus_per_client=gpus_per_client,
            on_row=show,
            parts=door.run_parts(),
        )
    print_summary(run_dir, console)
    require_complete(run_dir)


@cli.command("list")
def list_names() -> None:
    """List the tasks, attacks and strategies there are, and where they come from."""
    from fedif_flower.listing import listing

    for table in listing():
        table.print(Console())
    typer.echo("Besides: module:object, out of any package that is installed here.")


_TEMPLATES = [f"{name}: {about}" for name, about in KINDS.items()]


@cli.command("new", epilog="\n\n".join(["Templates:", *_TEMPLATES]))
def new_app(
    folder: Annotated[Path, typer.Argument(help="where to; its name is the app's")],
    template: Annotated[str, typer.Option(help="what its task is about; see below")] = DEFAULT,
) -> None:
    """Write a Flower app with a task of your own to fill in; it runs as it is."""
    for path in write_app(folder, template):
        typer.echo(path)


@cli.command()
def show(
    run_dir: RunDir,
    sort: Annotated[str, typer.Option(help="a column: contribution, weight_score, name ...")] = "",
    picture: Annotated[Path | None, typer.Option(help="draw the run here, *.png")] = None,
    of: Annotated[
        str | None, typer.Option(help="what the picture shows: members (as usual), rounds")
    ] = None,
) -> None:
    """Show a run's figures and its members; the run need not be complete."""
    require_directories([run_dir])
    if of is not None and picture is None:
        raise ConfigError(f"of = {of!r}; allowed: with --picture, since --of says what it shows")
    from fedif_flower.run.ending import print_summary
    from fedif_flower.run.report import column_words
    from fedif_flower.run.results import load

    console = Console()
    # The output is captured here and written afterwards: an error in writing it is no fault of the
    # run's records.
    with (
        console.capture() as shown,
        refused_as(ConfigError, f"{run_dir} holds no run that can be read"),
    ):
        results = load(run_dir)
        if results.summary:
            print_summary(results.folder.path, console)
        members = results.table(sort)
        members.print(console)
        if members.lines:
            console.print(column_words(members.heading), soft_wrap=True, highlight=False)
        words = repr(results)
    typer.echo(shown.get(), nl=False)
    typer.echo(words)
    if picture is not None:
        drawn = results.plot(picture, of or "members")
        typer.echo(f"Picture: {drawn.absolute()}")


validation_cli = typer.Typer(name="validation", no_args_is_help=True)
cli.add_typer(validation_cli)


@validation_cli.callback()
def validation() -> None:
    """Examine the server's held-out data."""


@validation_cli.command("check")
def check_validation(
    config: Config = None,
    out: Annotated[Path | None, typer.Option(help="write the suspects here, *.csv")] = None,
) -> None:
    """Say how many held-out labels look wrong, which classes are missing, what is there twice.

    The run config names the task; no client is asked.
    """
    parsed = parse_config(config, {})
    from fedif_flower.run.held_out import examine
    from fedif_flower.run.loaded_task import load_task
    from fedif_flower.run.own_sections import ValidationSettings
    from fedif_flower.run.record_files import Table
    from fedif_flower.valuation.noise_profile import Suspect

    examination = examine(load_task(parsed), parsed.section(ValidationSettings).check().seconds)
    where = ""
    if out is not None:
        where = out.name
    typer.echo(f"{examination.examples} examples: {examination.words(where)}")
    if examination.accuracy is not None:
        typer.echo(
            f"By {examination.how}, in {examination.seconds:.1f} s; accuracy on examples that were "
            f"not trained on: {100 * examination.accuracy:.1f} %"
        )
    if out is not None:
        columns = [field.name for field in fields(Suspect)]
        Table(out, columns).replace([vars(suspect) for suspect in examination.suspects])
        typer.echo(f"Suspects: {out.absolute()}")
    elif examination.suspects:
        typer.echo("--out FILE writes the suspects")


def main() -> None:
    """Run the command line; an error of this package or of a file is a line, not a traceback."""

    def with_logs() -> None:
        show_logs()
        cli()

    end_by_a_line(with_logs)


def end_by_a_line(command: Callable[[], object]) -> None:
    """Carry out a command; an error of this package or of a file is a line, not a traceback."""
    try:
        command()
    except (FedIFError, OSError) as error:
        line = f"[bold red]error:[/] {escape(one_line(error, 2000))}"
        Console(stderr=True, emoji=False).print(line, soft_wrap=True, highlight=False)
        raise SystemExit(getattr(error, "exit_code", 1)) from None


def require_directories(directories: list[Path]) -> None:
    """Raise ConfigError if one of the paths is no directory."""
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"{str(directory)!r} is no directory")


def parse_config(config: list[str] | None, options: Mapping[str, int | Path | None]) -> RunConfig:
    """Return the settings that a command was given; all others have their defaults.

    ``output-dir`` becomes an absolute path, so that it does not depend on the working directory.

    Parameters
    ----------
    config : list of str, optional
        Texts of ``KEY=VALUE`` pairs; where two have the same key, the later one counts.
    options : mapping
        Values of the command's own options, by run-config key; they count more than ``config``.
        ``None``: the option was not given.
    """
    from fedif_flower.run.config import RunConfig
    from fedif_flower.settings import parse_overrides

    settings = RunConfig.defaults()
    for text in config or []:
        settings |= parse_overrides(text)  # As Flower does: the later option counts.
    for key, value in options.items():
        if isinstance(value, Path):
            settings[key] = str(value)
        elif value is not None:
            settings[key] = value
    output_dir = Path(str(settings["output-dir"]))
    settings["output-dir"] = str(output_dir.expanduser().absolute())
    return RunConfig.from_run_config(settings, door.run_parts())
