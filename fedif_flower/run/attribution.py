"""Path attribution of a run, in two files that grow round by round."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.run.config import RunConfig
from fedif_flower.storage import write_atomically, writing
from fedif_flower.strategies.attributed import MemberCredit, RoundAttribution
from fedif_flower.strategies.attribution import PathAttribution
from fedif_flower.valuation import Validation
from fedif_flower.valuation.credit import CreditBounds

CLIENTS, ROUNDS = "attribution.csv", "attribution_rounds.csv"
_ROUND_COLUMNS = ("round", "loss_before", "loss_after", "decrease", "attributed", "remainder")


def credit_bounds(config: RunConfig) -> CreditBounds:
    """Return the bounds that a run's settings name."""
    return CreditBounds(config.credit_length, config.credit_borrowed, config.credit_weight)


class RecordedAttribution(PathAttribution):
    """Writes ``attribution.csv`` and ``attribution_rounds.csv`` as rounds are attributed.

    Parameters
    ----------
    config : RunConfig
        The run, whose ``attribution`` is not ``"off"``.
    validation : Validation
        The server's validation split.

    Raises
    ------
    ConfigError
        If ``output-dir`` cannot be written to.
    """

    def __init__(self, config: RunConfig, validation: Validation) -> None:
        super().__init__(
            validation,
            config.attribution,
            per_class=config.attribution_per_class,
            bounds=credit_bounds(config),
            on_attribution=self._append,
        )
        self._run_dir = config.run_dir
        try:
            self._write_headers()
        except StorageError as error:
            raise ConfigError(
                f"output-dir = {config.output_dir!r}: cannot write: {error}"
            ) from error

    def sums(self) -> dict[str, float]:
        """Return decrease, attributed and remainder over all rounds, for the summary."""
        return {
            name: math.fsum(getattr(found, name) for found in self.rounds)
            for name in ("decrease", "attributed", "remainder")
        }

    def load_state_dict(
        self, state: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], last_round: int
    ) -> None:
        """Take over the rounds of a checkpoint, and write them in place of what is there."""
        super().load_state_dict(state, lines, last_round)
        self._write_headers()
        for found in self.rounds:
            self._append(found)

    def _write_headers(self) -> None:
        classes = tuple(f"contribution_class_{c}" for c in range(self.num_classes))
        credit = tuple(field.name for field in fields(MemberCredit))
        own = ("round", "partition_id", "client_id", "coefficient", "contribution")
        columns = (*own, *credit, *classes)
        for name, header in ((CLIENTS, columns), (ROUNDS, _ROUND_COLUMNS)):
            write_atomically(self._run_dir / name, ",".join(header) + "\n")

    def _append(self, found: RoundAttribution) -> None:
        t = found.server_round
        # The round's own line comes last: where it is, the clients' are complete.
        self._write_lines(
            CLIENTS,
            (
                (
                    *(t, c.partition_id, c.client_id, c.coefficient, c.contribution),
                    *astuple(c.credit or MemberCredit(c.contribution)),
                    *c.classes,
                )
                for c in found.clients
            ),
        )
        figures = (found.decrease, found.attributed, found.remainder)
        self._write_lines(ROUNDS, [(t, found.loss_before, found.loss_after, *figures)])

    def _write_lines(self, name: str, lines: Iterable[tuple[float, ...]]) -> None:
        path = self._run_dir / name
        with writing(path), path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
