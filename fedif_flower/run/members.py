"""The report's table of members: what each contributed, and how far its updates count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from fedif_flower.messages.client_node import UNKNOWN_PARTITION
from fedif_flower.run.rows import ClientRow
from fedif_flower.strategies.scoring import Scoring


def member_table(
    clients: Sequence[ClientRow],
    contributed: Mapping[int, float] | None = None,
    scores: Scoring | None = None,
    names: Mapping[int, str] | None = None,
) -> list[str]:
    """Return a Markdown table of the members, the largest contribution first.

    Parameters
    ----------
    clients : sequence of ClientRow
        The lines of ``clients.csv``.
    contributed : mapping of int to float, optional
        What each client contributed by path attribution, in nats, by its id; ``None``: the run did
        not attribute, and the weight score decides the order.
    scores : Scoring, optional
        How weight scores come about.
    names : mapping of int to str, optional
        What the operator calls members, by client id.
    """
    members: dict[int, list[ClientRow]] = {}
    for row in clients:
        members.setdefault(row.client_id, []).append(row)

    def rank(rows: Sequence[ClientRow]) -> tuple[float, int, int]:
        last = rows[-1]
        by_loss = None if contributed is None else contributed.get(last.client_id, 0.0)
        value = _last(rows, "weight_score") if by_loss is None else by_loss
        return -(float("-inf") if value is None else value), last.partition_id, last.client_id

    columns = ["member"] if names else []
    columns += ["partition", "node", "rounds", "refused", "contributed", "weight score"]
    columns += ["accumulative influence", "weight", "marked"]
    is_scored, has_influence = (
        any(getattr(row, name) is not None for row in clients)
        for name in ("weight_score", "accumulative_influence")
    )
    for column, is_there in (
        ("contributed", contributed is not None),
        ("weight score", is_scored),
        ("accumulative influence", has_influence),
    ):
        if not is_there:
            columns.remove(column)
    # A node of an app of one's own has no partition but its id.
    if all(row.partition_id in (UNKNOWN_PARTITION, row.client_id) for row in clients):
        columns.remove("partition")
    lines = ["## Members", "", *wrap(_words(columns, scores), 100), ""]
    lines += [_line(columns), _line(["---"] * len(columns))]
    for rows in sorted(members.values(), key=rank):
        last = rows[-1]
        cells = {
            "member": (names or {}).get(last.client_id, "").replace("|", "\\|"),
            "partition": str(last.partition_id),
            "node": str(last.client_id),
            "rounds": str(len(rows)),
            "refused": str(sum(bool(row.rejection) for row in rows)),
            "contributed": f"{(contributed or {}).get(last.client_id, 0.0):.4f}",
            "weight score": _shown(_last(rows, "weight_score")),
            "accumulative influence": _shown(_last(rows, "accumulative_influence")),
            "weight": f"{sum(row.weight or 0.0 for row in rows):.3f}",
            "marked": "malicious" if last.malicious else "",
        }
        lines.append(_line([cells[column] for column in columns]))
    return lines


def _words(columns: Sequence[str], scores: Scoring | None) -> str:
    """Return what the columns mean."""
    meanings = {
        "contributed": "Contributed is by how much the member's updates lowered the validation "
        "loss over the run, by path attribution, in nats for a cross-entropy. It adds up over "
        "rounds and over members.",
        "weight score": "Weight score is the strategy's score (Omega) after the member's last "
        "round. It is no contribution, and nobody should be paid by it. "
        + (scores.words() if scores else ""),
        "accumulative influence": "Accumulative influence is the paper's INF.",
        "weight": "Weight is the sum of the member's aggregation weights over its rounds.",
    }
    return " ".join(meanings[column].strip() for column in columns if column in meanings)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _last(rows: Sequence[ClientRow], name: str) -> float | None:
    """Return the last value that there is in a column."""
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return float(values[-1]) if values else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
