"""In the place of this package's parts of a run, where the extra ``consortium`` is missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fedif_consortium.extra import what_it_needs
from fedif_flower.errors import ConfigError
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.settings import Scalar

SECTIONS = ("metrics", "masking", "evidence", "gradients", "statement")
logger = logging.getLogger(__name__)


class LeftOut(RunPart):
    """Says that the run goes on without them, and refuses a run config that asks for one."""

    def automatic(self, values: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Return nothing.

        Raises
        ------
        ConfigError
            If a key of theirs is set; what ``flwr run`` sends along without need is not here.
        """
        for key, value in values.items():
            section = key.partition(".")[0]
            if section in SECTIONS:
                raise ConfigError(what_it_needs(f"{key} = {value!r}"))
        return {}

    def build(self, run: RunContext) -> Built:  # noqa: ARG002
        """Say it once in the run's log; nothing is added."""
        logger.info("%s", what_it_needs(f"left out: {', '.join(SECTIONS)}; each"))
        return NOTHING
