"""A run's folder, made by hand: what a run with attribution leaves behind."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedif_consortium.statement.records import USUAL

CLIENT_COLUMNS = (
    "round",
    "partition_id",
    "client_id",
    "malicious",
    "score",
    "normalized",
    "weight_score",
    "weight",
    "accumulative_influence",
    "num_examples",
    "train_seconds",
    "train_loss",
    "status",
    "rejection",
    "note",
    "asked_in",
)
ATTENDANCE_COLUMNS = ("round", "partition_id", "client_id", "presence", "at")
ROUND_COLUMNS = ("round", "loss_before", "loss_after", "decrease", "attributed", "remainder")


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


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
    for number, values in enumerate(contributions, start=1):
        for partition, value in values.items():
            who = {
                "round": number,
                "partition_id": partition,
                "client_id": ids.get(partition, partition),
            }
            clients.append(
                who
                | {"malicious": 0, "weight_score": 0.5, "weight": 1 / len(values)}
                | {"num_examples": float(100 + partition), "status": "accepted"}
                | {"asked_in": (late or {}).get((number, partition), "")}
            )
            classes = {f"contribution_class_{k}": value / by_class for k in range(by_class)}
            if blocks:
                own = enumerate(blocks[partition])
                classes |= {f"contribution_block_{k}": value * part for k, part in own}
            part = who | {"coefficient": 1 / len(values), "contribution": value} | classes
            part["credited"] = value * (credited or {}).get(partition, 1.0)
            parts.append(part | dict.fromkeys(USUAL, 0.0))
        for (of_round, partition), reason in refused.items():
            if of_round == number:
                who = {
                    "round": number,
                    "partition_id": partition,
                    "client_id": ids.get(partition, partition),
                }
                status = (statuses or {}).get((number, partition), "refused")
                why = {"status": status, "rejection": reason}
                clients.append(who | {"malicious": 0, "weight": 0.0} | why)
        attributed = math.fsum(values.values())
        own = (remainders or {}).get(number, remainder)
        decrease = attributed + own
        rounds.append(
            {"round": number, "loss_before": loss, "loss_after": loss - decrease}
            | {"decrease": decrease, "attributed": attributed, "remainder": own}
        )
        loss -= decrease
    write_rows(run_dir / "clients.csv", CLIENT_COLUMNS, clients)
    columns = ["round", "partition_id", "client_id", "coefficient", "contribution"]
    columns += ["credited", *USUAL, *(f"contribution_class_{k}" for k in range(by_class))]
    num_blocks = len(next(iter(blocks.values()))) if blocks else 0
    columns += [f"contribution_block_{k}" for k in range(num_blocks)]
    write_rows(run_dir / "attribution.csv", columns, parts)
    write_rows(run_dir / "attribution_rounds.csv", ROUND_COLUMNS, rounds)
    counts = dict.fromkeys(("accepted", "rejected", "failed", "round_failed", "online"), 0)
    lines = [{"round": 0}, *({"round": row["round"], "online": 0} for row in rounds)]
    write_rows(run_dir / "rounds.csv", ["round", *counts], [counts | line for line in lines])
    write_rows(run_dir / "attendance.csv", ATTENDANCE_COLUMNS, attendance)
    config = {"strategy": "fedif", "gamma": 0.3, "attribution": "simpson"}
    (run_dir / "config.json").write_text(json.dumps(config))
    (run_dir / "summary.json").write_text(json.dumps({"scoring": scoring}))
    (run_dir / "model.pt").write_bytes(b"a model")
    digests = {"settings_sha256": "aa", "validation_sha256": "bb", "code_sha256": "cc"}
    provenance: dict[str, object] = {name: 32 * digest for name, digest in digests.items()}
    provenance["held_out_blocks"] = [1 / num_blocks for _ in range(num_blocks)]
    (run_dir / "provenance.json").write_text(json.dumps(provenance))
    if names:
        rows = [{"client_id": key, "name": name} for key, name in names.items()]
        write_rows(run_dir / "names.csv", ("client_id", "name"), rows)
    return run_dir
