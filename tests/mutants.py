"""The suite's own measure: faults made on purpose, and whether the tests beside them find them.

``python -m tests.mutants`` makes each fault of ``mutants.toml`` alone, in a copy of the tree, and
runs the tests that are named there. It fails when fewer than 27 of them are found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = (
    "fedif_flower",
    "fedif_consortium",
    "fedif_studies",
    "examples",
    "tests",
    "pyproject.toml",
)
LEAST_FOUND = 27
FOUND, SURVIVED = "found", "SURVIVED"
_WORDS = {0: SURVIVED, 1: FOUND}  # By pytest's exit code.


@dataclass(frozen=True)
class Mutant:
    """One fault: what a user would notice, the text in its file, and the tests that ought to."""

    notice: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Return a file's text with the fault."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {self.old!r} {times} times; needed: once")
        return text.replace(self.old, self.new)


def read_mutants() -> list[Mutant]:
    """Return the list."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]
    return [Mutant(**entry | {"tests": tuple(entry["tests"])}) for entry in found]


def run_tests(tree: Path, tests: Sequence[str], jobs: int, *, writes: bool) -> tuple[int, str]:
    """Run tests in a copy of the tree; return pytest's exit code, and its last lines."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # A copy's bytecode is that of the unchanged files: only the first run may write any.
    own = {"PYTHONDONTWRITEBYTECODE": "" if writes else "1", "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "--tb=short", "--no-header"]
    command += ["-p", "no:cacheprovider", "-m", "not ray and not deployment"]
    done = subprocess.run(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), **own},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-20:])


def try_mutant(mutant: Mutant, clean: Path, jobs: int) -> str:
    """Return what became of a fault: found, survived, or why neither can be said."""
    with tempfile.TemporaryDirectory() as folder:
        tree = shutil.copytree(clean, Path(folder) / "tree")
        path = tree / mutant.file
        path.write_text(mutant.applied(path.read_text()))
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            stale.unlink()
        code, said = run_tests(tree, mutant.tests, jobs, writes=False)
        return _WORDS.get(code, f"not tried: pytest ended with {code}\n{said}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the faults; return the exit code."""
    parser = argparse.ArgumentParser(description="Make faults in a copy, and look who is found.")
    parser.add_argument("words", nargs="*", help="only faults whose file or notice has one of them")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    given = parser.parse_args(arguments)
    chosen = [
        m
        for m in read_mutants()
        if not given.words or any(word in f"{m.file} {m.notice}" for word in given.words)
    ]
    for mutant in chosen:
        mutant.applied((ROOT / mutant.file).read_text())
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        clean = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, clean / name)
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        code, said = run_tests(clean, tests, 1, writes=True)
        if code:
            print(f"the tests fail without any fault:\n{said}")
            return 1
        outcomes = pool.map(lambda mutant: try_mutant(mutant, clean, given.jobs), chosen)
        found = 0
        for mutant, outcome in zip(chosen, outcomes, strict=True):
            found += outcome == FOUND
            print(f"{outcome:9} {mutant.file}: {mutant.notice}", flush=True)
    needed = len(chosen) if given.words else LEAST_FOUND
    print(f"{found} of {len(chosen)} found; needed: {needed}")
    return 0 if found >= needed else 1


if __name__ == "__main__":
    sys.exit(main())
