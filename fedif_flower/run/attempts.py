"""What an earlier attempt left in a run's folder is put aside before another one begins."""

from __future__ import annotations

import logging

from fedif_flower.run.folder import RunFolder
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)


def put_attempt_aside(folder: RunFolder, rounds_done: int, *, keeps_records: bool) -> None:
    """Put what an earlier attempt left aside, and say which of its rounds count no more.

    Parameters
    ----------
    folder : RunFolder
        The run's, before it begins.
    rounds_done : int
        Rounds of the attempt that count.
    keeps_records : bool
        Whether the others' records are kept, in a folder of their own.
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
    """Put files aside that are called like a run's, where there is no run: a model, perhaps."""
    names = folder.results()
    if names:
        kept_in = folder.keep_attempt()
        logger.warning("%s: not of a run; kept in %s", enumerated(names), kept_in)
