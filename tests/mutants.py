"""The suite's own measure: faults made on purpose, and whether the tests beside them find them.

``python -m tests.mutants`` makes each fault of ``mutants.toml`` alone, in a copy of the tree, and
runs the tests that are named there. It fails when fewer than 27 of them are found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parents[1]
# Not part of a copy of the tree. Compiled files would be those of no fault.
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "runs", "*.egg-info")
LEAST_FOUND = 27
FOUND = "found"
_WORDS = {0: "SURVIVED", 1: FOUND}  # By pytest's exit code.


@dataclass(frozen=True)
class Mutant:
    """One fault: what a user would notice, the text in its file, and the tests that ought to."""

    notice: str
    file: str
    old: str
    new: str
    tests: list[str]

    def applied(self, text: str) -> str:
        """Return a file's text with the fault."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(
                f"tests/mutants.toml quotes {self.old!r}, which {self.file} has {times} times; "
                "needed: once"
            )
        return text.replace(self.old, self.new)


def read_mutants() -> list[Mutant]:
    """Return the list."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]
    return [Mutant(**entry) for entry in found]


def run_tests(tests: list[str], jobs: int, mutant: Mutant | None = None) -> tuple[int, str]:
    """Run tests in a copy of the tree with a fault; return pytest's exit code, and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        if mutant is not None:
            (tree / mutant.file).write_text(mutant.applied((tree / mutant.file).read_text()))
        threads = max(1, (os.cpu_count() or 1) // jobs)
        command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "--tb=short", "--no-header"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "-m", "not ray and not deployment"],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
            check=False,
        )
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-20:])


def main(
    words: Annotated[
        list[str] | None, typer.Argument(help="only faults whose file or notice has one of them")
    ] = None,
    jobs: Annotated[int, typer.Option(help="how many at a time")] = 2,
) -> None:
    """Make faults in copies, and look who is found."""
    known = read_mutants()
    chosen = [
        m for m in known if not words or any(word in f"{m.file} {m.notice}" for word in words)
    ]
    for mutant in chosen:
        mutant.applied((ROOT / mutant.file).read_text())
    code, said = run_tests(sorted({test for mutant in chosen for test in mutant.tests}), 1)
    if code:
        raise SystemExit(f"the tests fail without any fault:\n{said}")
    found = 0
    with ThreadPoolExecutor(jobs) as pool:
        tried = pool.map(lambda mutant: run_tests(mutant.tests, jobs, mutant), chosen)
        for mutant, (code, said) in zip(chosen, tried, strict=True):
            outcome = _WORDS.get(code, f"not tried: pytest ended with {code}\n{said}")
            found += outcome == FOUND
            print(f"{outcome:9} {mutant.file}: {mutant.notice}", flush=True)
    needed = len(chosen) if words else LEAST_FOUND
    print(f"{found} of {len(chosen)} found; needed: {needed}")
    raise SystemExit(found < needed)


if __name__ == "__main__":
    typer.run(main)
