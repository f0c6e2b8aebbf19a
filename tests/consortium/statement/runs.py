"""A run's folder, made by hand: what a run with attribution leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedif_consortium.statement.records import USUAL
from fedif_flower.run.folder import RunFolder


def make_run(
    run_dir: Path,
    contributions: Sequence[Mapping[int, float]],
    *,
    rejections: Mapping[tuple[int, int], str] | None = None,
    statuses: Mapping[tuple[int, int], str] | None = None,
    remainder: float = 0.0,
    remainders: Mapping[int, float] | None = None,
    names: Mapping[int, str] | None = None,
    by_class: int = 0,
    node_ids: Mapping[int, int] | None = None,
    credited: Mapping[int, float] | None = None,
    scoring: Mapping[str, object] | None = None,
    attendance: Sequence[Mapping[str, object]] = (),
    late: Mapping[tuple[int, int], int] | None = None,
    blocks: Mapping[int, Sequence[float]] | None = None,
) -> Path:
    """Write a run: contributions by partition, a mapping for each round.

    ``rejections`` are reasons by round (from 1) and partition, ``statuses`` what became of those
    that were not refused, ``late`` the rounds in which they were asked. Omega is 0.5, examples are
    100 more than the partition. ``credited`` is the share of its contributions that a partition is
    credited with, 1 where it is not said. ``blocks`` are the parts of a partition's contributions
    that come from each of as many blocks of held-out examples, of equal weights.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    ids = node_ids or {}
    clients, parts, rounds = [], [], []
    loss = 2.0
    refused = rejections or {}

    def who(number: int, partition: int) -> dict[str, object]:
        named = {"partition_id": partition, "client_id": ids.get(partition, partition)}
        return {"round": number, "malicious": False} | named

    for number, values in enumerate(contributions, start=1):
        for partition, value in values.items():
            clients.append(
                who(number, partition)
                | {"weight_score": 0.5, "weight": 1 / len(values)}
                | {"num_examples": float(100 + partition), "status": "accepted"}
                | {"asked_in": (late or {}).get((number, partition))}
            )
            own = blocks[partition] if blocks else ()
            parts.append(
                who(number, partition)
                | {"coefficient": 1 / len(values), "contribution": value}
                | {"credited": value * (credited or {}).get(partition, 1.0)}
                | dict.fromkeys(USUAL, 0.0)
                | {f"contribution_class_{k}": value / by_class for k in range(by_class)}
                | {f"contribution_block_{k}": value * part for k, part in enumerate(own)}
            )
        for (of_round, partition), reason in refused.items():
            if of_round == number:
                status = (statuses or {}).get((number, partition), "refused")
                why = {"weight": 0.0, "status": status, "rejection": reason}
                clients.append(who(number, partition) | why)
        attributed = math.fsum(values.values())
        own = (remainders or {}).get(number, remainder)
        decrease = attributed + own
        rounds.append(
            {"round": number, "loss_before": loss, "loss_after": loss - decrease}
            | {"decrease": decrease, "attributed": attributed, "remainder": own}
        )
        loss -= decrease
    folder = RunFolder(run_dir)
    folder.clients.replace(clients)
    num_blocks = len(next(iter(blocks.values()))) if blocks else 0
    folder.begin_attribution(by_class, num_blocks)
    folder.attribution.append(parts)
    folder.attributed_rounds.append(rounds)
    counts = dict.fromkeys(("accepted", "rejected", "failed", "round_failed", "online"), 0)
    folder.rounds.replace({**counts, "round": number} for number in range(len(rounds) + 1))
    folder.attendance.replace(attendance)
    config = {"strategy": "fedif", "gamma": 0.3, "attribution": "simpson"}
    (run_dir / "config.json").write_text(json.dumps(config))
    (run_dir / "summary.json").write_text(json.dumps({"scoring": scoring}))
    (run_dir / "model.pt").write_bytes(b"a model")
    digests = {"settings_sha256": "aa", "validation_sha256": "bb", "code_sha256": "cc"}
    provenance: dict[str, object] = {name: 32 * digest for name, digest in digests.items()}
    provenance["held_out_blocks"] = [1 / num_blocks for _ in range(num_blocks)]
    (run_dir / "provenance.json").write_text(json.dumps(provenance))
    if names:
        folder.names.replace({"client_id": key, "name": name} for key, name in names.items())
    return run_dir
