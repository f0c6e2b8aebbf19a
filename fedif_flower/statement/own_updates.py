"""A member checks its own lines of a masked run: with the updates that it alone has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.run.asked_vectors import KeptVector, read_vector
from fedif_flower.run.folder import RunFolder

# Of what the numbers can be at most: a product's |u| |g|. Lengths and weights are rounded less.
TOLERANCE = 1e-4
_FILE = re.compile(r"round-(\d{6,})\.npz")


@dataclass(frozen=True)
class OwnRounds:
    """What was recomputed.

    Attributes
    ----------
    rounds : int
        In which the records give what the member's own updates do.
    contribution : float
        Their sum, in nats.
    not_there : tuple of int
        Rounds of the run in which this member sent an update that has no contribution: the round
        failed, or the reply was refused.
    """

    rounds: int
    contribution: float
    not_there: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Own:
    """An update of the member's own, and who the member is in the records."""

    server_round: int
    update: NDArray[np.float64]
    node_id: int
    partition_id: int


def check_own(run_dir: Path, own: Path) -> OwnRounds:
    """Recompute a member's scores and contributions, and compare them with the records.

    Parameters
    ----------
    run_dir : Path
        The folder of a masked run with ``keep-vectors``.
    own : Path
        The ``own-updates-dir`` of the member.

    Raises
    ------
    ConfigError
        If the run was not masked or kept no vectors, or the member has no update of it.
    StatementError
        Naming the round whose record is not what the member's own update gives.
    """
    run = RunFolder(run_dir)
    digests = {
        (int(line["round"]), line["purpose"]): (line["run"], line["sha256"])
        for line in run.asked.read()
    }
    if not (digests and run.masking.path.is_file()):
        raise ConfigError(f"{str(run_dir)!r} is no masked run: it asked no keeper about vectors")
    names = {round_: name for (round_, _), (name, _) in digests.items()}
    found = list(_own_updates(own, names))
    if not found:
        raise ConfigError(f"{str(own)!r} holds no update of this run")
    contributed = _lines(run.attribution.read())
    scored = _lines(run.clients.read())
    divides = bool(run.config.read().get("weight-normalization", True))
    checked, total, not_there = 0, 0.0, []
    for mine in found:
        line = _of(contributed, mine)
        if line is None:
            not_there.append(mine.server_round)
            continue
        gradient = _vector(run, digests, mine.server_round, "attribution")
        coefficient, told = float(line["coefficient"]), float(line["contribution"])
        slope, bound = _product(mine, gradient)
        _compare(mine, "contribution", told, -coefficient * slope, abs(coefficient) * bound)
        score = _of(scored, mine)
        if (mine.server_round, "scores") in digests and score is not None:
            gradient = _vector(run, digests, mine.server_round, "scores")
            slope, bound = _product(mine, gradient)
            length = float(np.linalg.norm(mine.update)) if divides else 1.0
            if length:
                _compare(mine, "score", float(score["score"]), -slope / length, bound / length)
        checked, total = checked + 1, total + told
    return OwnRounds(checked, total, tuple(not_there))


def _own_updates(own: Path, names: Mapping[int, str]) -> Iterator[_Own]:
    """Yield the updates of a run's rounds; ``names`` says what each round's run was called."""
    for path in sorted(own.glob("*/round-*.npz")):
        named = _FILE.fullmatch(path.name)
        if named is None or names.get(int(named[1])) != path.parent.name:
            continue
        try:
            with np.load(path, allow_pickle=False) as content:
                update = np.asarray(content["update"], np.float64)
                ids = int(content["node_id"]), int(content["partition_id"])
        except Exception as error:  # a damaged file can hold anything
            raise ConfigError(f"{path} holds no update: {error!r:.200}") from error
        yield _Own(int(named[1]), update, *ids)


def _lines(rows: list[dict[str, str]]) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return rows by round and who they are about; by node id, and by partition."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        if row.get("status", "accepted") == "accepted":
            found[row["round"], "client", row["client_id"]] = row
            # Simulated nodes have another id in every run: their partition is what lasts.
            if row["client_id"] == row["partition_id"]:
                found[row["round"], "partition", row["partition_id"]] = row
    return found


def _of(lines: Mapping[tuple[str, str, str], dict[str, str]], mine: _Own) -> dict[str, str] | None:
    number = str(mine.server_round)
    by_node = lines.get((number, "client", str(mine.node_id)))
    return by_node or lines.get((number, "partition", str(mine.partition_id)))


def _vector(
    run: RunFolder, digests: Mapping[tuple[int, str], tuple[str, str]], number: int, purpose: str
) -> KeptVector:
    """Return a vector that the run was asked about, if it is the one that the keeper got."""
    if (number, purpose) not in digests:
        raise StatementError(f"round {number}: no vector was asked about for its {purpose}")
    kept = read_vector(run, number, purpose)
    if kept is None:
        raise ConfigError(
            f"the vectors of round {number} are not here: ask for them, or run with "
            "keep-vectors = true"
        )
    if kept.sha256 != digests[number, purpose][1]:
        raise StatementError(f"round {number}: the vector for its {purpose} was changed")
    return kept


def _product(mine: _Own, vector: KeptVector) -> tuple[float, float]:
    """Return the inner product of an update with a vector, and the largest that it could be."""
    if mine.update.shape != vector.vector.shape:
        raise StatementError(
            f"round {mine.server_round}: its vector has {len(vector.vector)} entries, the member's "
            f"update {mine.update.size}"
        )
    lengths = np.linalg.norm(mine.update), np.linalg.norm(vector.vector)
    return float(mine.update @ vector.vector), float(lengths[0] * lengths[1])


def _compare(mine: _Own, what: str, told: float, found: float, bound: float) -> None:
    if not abs(told - found) <= TOLERANCE * bound + 1e-12:
        raise StatementError(
            f"round {mine.server_round}: the records give this member a {what} of {told:.6g}; its "
            f"own update gives {found:.6g}"
        )
