"""A run's folder, made by hand: what a run with attribution leaves behind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedif_flower.attribution.table import NOISE_ENDS, noise_block_column, noise_column
from fedif_flower.run.folder import RunFolder

FIGURES = ("contribution", "credited")
_USUAL = ("length", "weight", "borrowed", "opposed")
_FIGURES = ("round", "loss_before", "loss_after", "decrease", "attributed", "remainder")

NONE: Mapping[Any, Any] = MappingProxyType({})


def make_run(
    run_dir: Path,
    contributions: Sequence[Mapping[int, float]],
    *,
    rejections: Mapping[tuple[int, int], str] = NONE,
    statuses: Mapping[tuple[int, int], str] = NONE,
    remainder: float = 0.0,
    remainders: Mapping[int, float] = NONE,
    names: Mapping[int, str] = NONE,
    by_class: int = 0,
    node_ids: Mapping[int, int] = NONE,
    credited: Mapping[int, float] = NONE,
    blocks: Mapping[int, Sequence[float]] = NONE,
    classes: Mapping[int, Sequence[float]] = NONE,
    provenance: Mapping[str, Any] = NONE,
    contradicted: float | None = None,
    at_noise_ends: Mapping[int, Sequence[float]] = NONE,
) -> Path:
    """Write a run: contributions by partition, a mapping for each round.

    ``rejections`` are reasons by round (from 1) and partition, ``statuses`` what became of those
    that were not refused. Omega is 0.5, examples are 100 more than the partition. ``credited`` is
    the share of its contributions that a partition is credited with, 1 where it is not said.
    ``blocks`` are the parts of a partition's contributions that come from each of as many blocks of
    held-out examples, of equal weights. ``classes`` are those that come from each of ``by_class``
    classes, equal ones where they are not said. ``provenance`` is added to what there is;
    ``contradicted`` is the share of labels that the last model contradicts. ``at_noise_ends`` has a
    partition's contributions, credits and blocks at both ends of the share of wrong labels, in
    multiples of those that are said above.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(run_dir)
    clients = []
    parts = []
    rounds = []
    loss = 2.0

    def who(number: int, partition: int) -> dict[str, object]:
        client_id = node_ids.get(partition, partition)
        return {"round": number, "partition_id": partition, "client_id": client_id}

    for number, values in enumerate(contributions, start=1):
        for partition, value in values.items():
            member = who(number, partition)
            weight = 1 / len(values)
            more = {"weight_score": 0.5, "num_examples": 100.0 + partition, "status": "accepted"}
            clients.append({**member, **more, "malicious": False, "weight": weight})
            class_parts = classes.get(partition, [1 / by_class] * by_class if by_class else [])
            split_by_class = {
                f"contribution_class_{k}": value * part for k, part in enumerate(class_parts)
            }
            split = enumerate(blocks.get(partition, ()))
            counted = {"contribution": value, "credited": value * credited.get(partition, 1.0)}
            counted |= {f"contribution_block_{k}": value * part for k, part in split}
            for end, factor in zip(NOISE_ENDS, at_noise_ends.get(partition, ()), strict=False):
                at_end = {noise_column(name, end): counted[name] for name in FIGURES}
                at_end |= {
                    f"{noise_block_column(end)}{k}": value * part
                    for k, part in enumerate(blocks.get(partition, ()))
                }
                counted |= {column: factor * figure for column, figure in at_end.items()}
            usual = dict.fromkeys(_USUAL, 0.0)
            parts.append({**member, **counted, "coefficient": weight, **usual, **split_by_class})
        for (of_round, partition), reason in rejections.items():
            if of_round == number:
                status = statuses.get((number, partition), "refused")
                more = {"malicious": False, "weight": 0.0, "status": status, "rejection": reason}
                clients.append({**who(number, partition), **more})
        attributed = math.fsum(values.values())
        left = remainders.get(number, remainder)
        fall = {"decrease": attributed + left, "attributed": attributed, "remainder": left}
        loss_before = loss
        loss -= fall["decrease"]
        rounds.append({"round": number, "loss_before": loss_before, "loss_after": loss, **fall})
    num_blocks = max(map(len, blocks.values()), default=0)
    folder.begin_attribution(by_class, num_blocks, has_noise_ends=bool(at_noise_ends))
    folder.attribution.append(parts)
    folder.attributed_rounds.append(rounds)
    folder.clients.replace(clients)
    counts = dict.fromkeys(("rejected", "failed", "late", "round_failed", "online"), 0)
    of_round = Counter(line["round"] for line in clients)
    folder.rounds.replace(
        {
            **counts,
            "round": number,
            "accepted": of_round[number],
            "validation_contradicted": contradicted,
        }
        for number in range(len(rounds) + 1)
    )
    folder.config.write({"strategy": "fedif", "gamma": 0.3, "attribution": "simpson"})
    folder.summary.write({})
    digests = {"settings_sha256": "aa", "validation_sha256": "bb", "code_sha256": "cc"}
    shares = [1 / num_blocks for _ in range(num_blocks)]
    digests = {name: 32 * digest for name, digest in digests.items()}
    folder.provenance.write({**digests, "held_out_blocks": shares, **provenance})
    folder.model.write_bytes(b"a model")
    if names:
        folder.names.replace({"client_id": key, "name": name} for key, name in names.items())
    return run_dir


def add_rounds(run_dir: Path, *rounds: Sequence[object]) -> None:
    """Write more lines of ``attribution_rounds.csv``: round, both losses, fall and its parts."""
    lines = [dict(zip(_FIGURES, figures, strict=True)) for figures in rounds]
    RunFolder(run_dir).attributed_rounds.append(lines)


def come_late(run_dir: Path, client_id: int, asked_in: Mapping[int, int]) -> None:
    """Let a member's replies answer earlier rounds; ``asked_in`` has these by where they count."""
    run = RunFolder(run_dir)
    lines = []
    for line in run.clients.read():
        number = int(line["round"])
        is_late = int(line["client_id"]) == client_id and number in asked_in
        lines.append({**line, "asked_in": asked_in[number]} if is_late else line)
    partition = next(line["partition_id"] for line in lines if int(line["client_id"]) == client_id)
    for number in asked_in.values():
        member = {"round": number, "partition_id": partition, "client_id": client_id}
        lines.append({**member, "status": "late", "weight": 0.0, "rejection": "late"})
    run.clients.replace(sorted(lines, key=lambda line: int(line["round"])))
    late = Counter(asked_in.values())
    run.rounds.replace({**line, "late": late[int(line["round"])]} for line in run.rounds.read())
