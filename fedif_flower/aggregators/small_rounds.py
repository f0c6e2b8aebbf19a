"""Warnings in the log about rounds that are smaller than a rule assumes."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class SmallRounds:
    """Logs warnings about rounds that are too small for a rule's settings, each only once."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def warn(self, sentence: str) -> None:
        """Log a sentence as a warning, unless this sentence was logged before."""
        if sentence in self._warned:
            return
        self._warned.add(sentence)
        logger.warning("%s", sentence)

    def warn_unless_minority(self, whose: str, num_malicious: int, num_updates: int) -> None:
        """Warn if the malicious clients are half of a round or more: no rule withstands that.

        Parameters
        ----------
        whose : str
            The rule's name, as the sentence begins with it.
        num_malicious, num_updates : int
            f and m.
        """
        if num_malicious and 2 * num_malicious >= num_updates:
            self.warn(
                f"{whose} assumes 2f < m; here f = {num_malicious} of m = {num_updates}: no "
                "guarantee holds"
            )
