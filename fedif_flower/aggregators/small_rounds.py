"""What the log says of rounds that are too small for what a rule assumes."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class SmallRounds:
    """Warns of rounds that are too small for a setting, once of each kind."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def warn(self, sentence: str) -> None:
        """Say a sentence, unless it was said."""
        if sentence in self._warned:
            return
        self._warned.add(sentence)
        logger.warning("%s", sentence)

    def warn_unless_minority(self, whose: str, num_malicious: int, num_updates: int) -> None:
        """Warn where f malicious clients are no minority of m: no rule withstands them."""
        if num_malicious and 2 * num_malicious >= num_updates:
            self.warn(
                f"{whose} assumes 2f < m; here f = {num_malicious} of m = {num_updates}: no "
                "guarantee holds"
            )
