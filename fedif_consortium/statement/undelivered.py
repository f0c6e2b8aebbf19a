"""The pages of a run's statement that are not delivered yet: the run's ``undelivered.json``."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from fedif_consortium.statement.manifest import ACCOUNT
from fedif_flower.run.folder import RunFolder


def queue_pages(run: RunFolder) -> None:
    """Queue the page of every member in a run's present statement.

    The queue of an earlier statement is replaced: its members get a page of this statement.
    """
    write_undelivered(run, of_members(run, "page"))


def of_members(run: RunFolder, column: str) -> dict[str, str]:
    """Return one column of the account in a run's statement, such as ``"page"``, by client id."""
    account = json.loads((run.statement / ACCOUNT).read_bytes())
    return {str(member["client_id"]): member[column] for member in account["members"]}


def take_off_queue(run: RunFolder, client_ids: Collection[int]) -> bool:
    """Take members' pages off the queue as it is at this moment; return whether any was on it."""
    pages = run.undelivered.read_if_there()
    left = {
        client_id: page for client_id, page in pages.items() if int(client_id) not in client_ids
    }
    if left == pages:
        return False
    write_undelivered(run, left)
    return True


def write_undelivered(run: RunFolder, pages: Mapping[str, str]) -> None:
    """Write the pages to deliver, by client id; without any, the file is removed."""
    if pages:
        run.undelivered.write(pages)
    else:
        # Another run may have delivered the last pages, and removed the file, meanwhile.
        run.undelivered.path.unlink(missing_ok=True)
