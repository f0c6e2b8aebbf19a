r"""The records' rows, chained round by round.

.. math:: h_0 = H(\text{settings, validation set, code}), \quad
          h_t = H(h_{t-1} \,\|\, \text{the rows of round } t)

with SHA-256. Whoever knows :math:`h_t` knows every row up to round t; a changed row changes every
hash from its round on, so that two who compare see which round they disagree about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from fedif_consortium.statement.records import RunRecords
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder, Table
from fedif_flower.run.rows import csv_text


def chained(folder: RunFolder) -> tuple[Table, ...]:
    """Return the tables whose rows are chained."""
    return folder.clients, folder.attribution, folder.attributed_rounds


def chain(records: RunRecords) -> list[str]:
    """Return the hashes of rounds 0 to T, in hex."""
    return chain_of(records.folder, len(records.rounds), records.provenance)


def chain_of(folder: RunFolder, rounds: int, provenance: Mapping[str, object]) -> list[str]:
    """Return the hashes of rounds 0 to ``rounds`` of the files in a run's folder.

    Raises
    ------
    ConfigError
        If a row names no round.
    """
    rows: list[list[object]] = [[] for _ in range(rounds + 1)]
    for table in chained(folder):
        name = table.path.name
        header, *body = table.cells()
        rows[0].append([name, header])
        for row in body:
            number = row[0] if row else ""  # The round is the first column.
            if not (number.isascii() and number.isdigit() and int(number) <= rounds):
                raise ConfigError(f"{table.path}: a row of round {number!r}")
            rows[int(number)].append([name, row])
    rows[0].append([folder.provenance.path.name, dict(provenance)])
    hashes = [hashlib.sha256(_canonical(rows[0])).hexdigest()]
    for of_round in rows[1:]:
        before = bytes.fromhex(hashes[-1])
        hashes.append(hashlib.sha256(before + _canonical(of_round)).hexdigest())
    return hashes


def to_csv(hashes: list[str]) -> str:
    """Return hashes as a CSV file: ``round,sha256``."""
    return csv_text([("round", "sha256"), *enumerate(hashes)])


def _canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
