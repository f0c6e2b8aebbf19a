"""How an earlier attempt's records in a run's folder are put aside before another one begins."""

from __future__ import annotations

import logging

from fedif_flower.run.folder import RunFolder
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)


def put_attempt_aside(folder: RunFolder, rounds_done: int, *, keeps_records: bool) -> None:
    """Put an earlier attempt's records aside, and log which of its rounds do not count any more.

    Parameters
    ----------
    folder : RunFolder
        The run's folder, before the run begins.
    rounds_done : int
        The last round of the earlier attempt that still counts; 0: none does.
    keeps_records : bool
        Whether the records of rounds that do not count are kept, in a folder of their own.
    """
    if not folder.holds_run():
        _put_files_of_others_aside(folder)
        return
    last = folder.last_round()
    first = rounds_done + 1
    if last < first:
        return
    rounds = f"round {last} of an earlier attempt counts"
    if last > first:
        rounds = f"rounds {first} to {last} of an earlier attempt count"
    where = "overwrite = true removes their records"
    if keeps_records:
        where = f"their records are kept in {folder.keep_attempt()}"
    logger.warning("%s no more; %s", rounds, where)


def _put_files_of_others_aside(folder: RunFolder) -> None:
    """Put aside files that have the names of a run's results although no run wrote them."""
    names = folder.results()
    if names:
        kept_in = folder.keep_attempt()
        words = "no run wrote %s, though they are named like a run's results: moved to %s"
        logger.warning(words, enumerated(names), kept_in)
