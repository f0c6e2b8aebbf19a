"""Who is still to get which page of a run's statement: the run's ``undelivered.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fedif_consortium.statement.manifest import ACCOUNT
from fedif_flower.run.folder import RunFolder


def queue_pages(run: RunFolder) -> None:
    """Write down that every member of a run is still to get its page of the statement there is.

    Whoever was still to get a page of an earlier statement gets one of this statement instead.
    """
    write_undelivered(run, of_members(run, "page"))


def of_members(run: RunFolder, column: str) -> dict[str, str]:
    """Return what a run's statement says of each member, by client id."""
    account = json.loads((run.statement / ACCOUNT).read_bytes())
    return {str(member["client_id"]): member[column] for member in account["members"]}


def write_undelivered(run: RunFolder, pages: Mapping[str, str]) -> None:
    """Write down the pages to deliver, by client id; where there are none, the file goes."""
    if pages:
        run.undelivered.write(pages)
    else:
        run.undelivered.path.unlink(missing_ok=True)  # A run beside this one was faster.
