"""Who is still to get which page of a run's statement: the run's ``undelivered.json``."""

from __future__ import annotations

from collections.abc import Mapping

from fedif_flower.run.folder import RunFolder


def write_undelivered(run: RunFolder, pages: Mapping[str, str]) -> None:
    """Write down the pages to deliver, by client id; where there are none, the file goes."""
    if pages:
        run.undelivered.write(pages)
    else:
        run.undelivered.path.unlink()
