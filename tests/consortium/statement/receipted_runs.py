"""Small runs whose members sign, and keep receipts; a server that binds its records anew."""

from __future__ import annotations

from pathlib import Path

from fedif_consortium.evidence.part import Evidence
from fedif_consortium.parts import run_parts
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.part import deliver
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement import signed_runs as of
from tests.consortium.statement.signed_runs import NAMES


def nodes(folder: Path, **more):
    """Return three members with keys, receipts and statements below a folder."""
    if not (folder / "keys").exists():
        of.write_keys(folder / "keys")
    own = {
        i: {"receipts-dir": str(folder / name), "statement-dir": str(folder / "pages" / name)}
        for i, name in enumerate(NAMES)
    }
    return of.nodes(folder / "keys", configs=own, **more)


def run(of_grid, folder: Path, key, on_row=None, **more) -> Path:
    """Run a federation with receipts and return its folder."""
    parts, more = run_parts(Evidence(lambda: key)), {"evidence.receipts": True, **more}
    return of.run(of_grid, folder / "runs", on_row, parts, **more)


def run_and_deliver(of_grid, folder: Path, key, **more) -> Path:
    """Run a federation, and bring members their pages and the last receipts."""
    run_dir = run(of_grid, folder, key, **more)
    make_statement(run_dir, key)
    pages = {str(1000 + i): f"members/00{i + 1}.html" for i in range(len(NAMES))}
    RunFolder(run_dir).undelivered.write(pages)
    deliver(of_grid, run_dir.parent)
    return run_dir


def held(folder: Path, *names: str) -> list[Path]:
    """Return where members keep receipts: those named, or all."""
    return [folder / name for name in names or NAMES]
