"""The part that a run has in place of all parts of this package, without the extra."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fedif_consortium.extra import INSTALL, missing_modules, what_it_needs
from fedif_flower.errors import ConfigError
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.settings import Scalar

# The sections of a run config that belong to the parts that are left out.
SECTIONS = ("metrics", "masking", "evidence", "gradients", "statement")
logger = logging.getLogger(__name__)


class LeftOut(RunPart):
    """Logs that the consortium's parts are left out; refuses a run config that sets one of them."""

    def automatic(self, values: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Return no values: this part has no settings that could be ``"auto"``.

        Raises
        ------
        ConfigError
            If ``values`` has a key of one of the :data:`SECTIONS`. Keys that ``flwr run`` always
            sends and whose values are off were taken out before.
        """
        for key, value in values.items():
            section = key.partition(".")[0]
            if section in SECTIONS:
                raise ConfigError(what_it_needs(f"{key} = {value!r}"))
        return {}

    def build(self, run: RunContext) -> Built:  # noqa: ARG002
        """Log once which sections are left out, and add nothing to the run."""
        logger.info(
            "left out: %s: they need packages that are not installed here (%s): %s",
            ", ".join(SECTIONS),
            ", ".join(missing_modules()),
            INSTALL,
        )
        return NOTHING
