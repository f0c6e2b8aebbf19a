"""One run at a time in a directory: a second one would mix its lines with the first one's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from fedif_flower.errors import ConfigError, StorageError


@contextmanager
def hold_directory(run_dir: Path) -> Iterator[None]:
    """Hold a run's directory alone; a killed process releases it.

    One that was made here, and in which nothing was written, is removed at the end.

    Parameters
    ----------
    run_dir : Path
        The directory; it is made if it is not there.

    Raises
    ------
    StorageError
        If another run holds it, naming that one's process, host and start.
    ConfigError
        If it cannot be made or written to.
    """
    lock_path = run_dir / ".run.lock"
    lock = FileLock(lock_path)
    holder = run_dir / ".run.holder"
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    made = not run_dir.exists()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}")
    except Timeout:
        who = (holder.is_file() and holder.read_text()) or "another run"
        raise StorageError(
            f"{run_dir} is in use by {who}: wait for its end, or set another run-name"
        ) from None
    except OSError as error:
        lock.release()
        raise ConfigError(f"output-dir = {str(run_dir.parent)!r}: cannot write: {error}") from error
    try:
        yield
    finally:
        holder.unlink(missing_ok=True)
        if made and [path.name for path in run_dir.iterdir()] == [lock_path.name]:
            lock_path.unlink()
            run_dir.rmdir()
        lock.release()
