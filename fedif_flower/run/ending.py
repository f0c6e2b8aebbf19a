"""What a command prints about a run that is over, and whether the command ends with an error."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedif_flower.errors import IncompleteRunError, TrainingFailedError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.report import figures_table
from fedif_flower.run.results import Run
from fedif_flower.tables import print_line


def require_last_round(run_dir: Path) -> None:
    """Raise TrainingFailedError if the last round of a completed run failed."""
    summary = RunFolder(run_dir).summary.read()
    if summary.get("last_round_failed"):
        raise TrainingFailedError(
            f"the last round failed, as {summary['failed_rounds']} of {summary['rounds']} did; "
            f"results: {run_dir}"
        )


def require_complete(run_dir: Path) -> None:
    """Raise an error unless a run came to a good end.

    Raises
    ------
    TrainingFailedError
        If its last round failed.
    IncompleteRunError
        If too few of the replies that it asked for came.
    """
    require_last_round(run_dir)
    record = RunFolder(run_dir).summary.read().get("completeness", {})
    if record.get("verdict") == "incomplete":
        raise IncompleteRunError(
            f"the run is incomplete: {' '.join(record['reasons'])} Results: {run_dir}"
        )


def print_summary(run_dir: Path, console: Console | None = None) -> None:
    """Print a completed run's figures, whether it is complete, and the path of its report."""
    console = console or Console()
    run = Run(run_dir)
    figures_table(run.summary, run.title).print(console)
    completeness = run.completeness
    style = "" if completeness.verdict == "complete" else "yellow"
    print_line(console, completeness.headline, style)
    print_line(console, f"Report: {run.folder.report}")
