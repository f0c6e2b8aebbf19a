"""Contributions as lines of ``attribution.csv`` and ``attribution_rounds.csv``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from fedif_flower.attribution.records import MemberCredit, RoundAttribution

CLASS_COLUMN = "contribution_class_"  # With the class's number.
BLOCK_COLUMN = "contribution_block_"  # With the block's number: contributions there.
BLOCKS_KEY = "held_out_blocks"  # In the provenance: each block's part of the held-out examples.
CLASSES_KEY = "held_out_classes"  # There: each class's part, where contributions are split by them.

NOISE_ENDS = ("low", "high")  # Of the interval in which the share of wrong labels lies.

_OF_CLIENT = ("partition_id", "client_id", "coefficient", "contribution")
_OF_CREDIT = tuple(field.name for field in fields(MemberCredit))
OF_DESCENT = ("slope", "smoothness", "bound_held")
"""Columns of ``attribution_rounds.csv`` that earlier versions did not write; no pay is of them."""
_OF_ROUND = ("loss_before", "loss_after", "decrease", "attributed", "remainder", *OF_DESCENT)

COLUMNS = ("round", *_OF_CLIENT, *_OF_CREDIT)
"""Those of ``attribution.csv``, before those of classes and blocks."""
ROUND_COLUMNS = ("round", *_OF_ROUND)
"""Those of ``attribution_rounds.csv``."""


def split_columns(num_classes: int, num_blocks: int, *, has_noise_ends: bool = False) -> list[str]:
    """Return the columns of contributions by class, and by block of held-out examples.

    With ``has_noise_ends``, those of both ends of the share of wrong labels come behind.
    """
    columns = [f"{CLASS_COLUMN}{label}" for label in range(num_classes)]
    columns += [f"{BLOCK_COLUMN}{block}" for block in range(num_blocks)]
    if has_noise_ends:
        for end in NOISE_ENDS:
            columns += [noise_column("contribution", end), noise_column("credited", end)]
            columns += [f"{noise_block_column(end)}{block}" for block in range(num_blocks)]
    return columns


def noise_column(figure: str, end: str) -> str:
    """Return the column of a contribution or a credit at an end of the share of wrong labels."""
    return f"{figure}_noise_{end}"


def noise_block_column(end: str) -> str:
    """Return how the columns of contributions by block at that end begin, before the number."""
    return f"contribution_noise_{end}_block_"


def client_lines(attributed: RoundAttribution) -> list[dict[str, object]]:
    """Return a round's lines of ``attribution.csv``: one for each client, by column."""
    lines = []
    for client in attributed.clients:
        line: dict[str, object] = {"round": attributed.server_round}
        for name in _OF_CLIENT:
            line[name] = getattr(client, name)
        # Without bounds of credit, all that a client contributed is credited.
        line |= vars(client.credit or MemberCredit(client.contribution))
        for label, contribution in enumerate(client.classes):
            line[f"{CLASS_COLUMN}{label}"] = contribution
        line |= _block_cells(BLOCK_COLUMN, client.blocks)
        for name, end in zip(NOISE_ENDS, client.noise_ends, strict=False):
            line[noise_column("contribution", name)] = end.contribution
            line[noise_column("credited", name)] = end.credited
            line |= _block_cells(noise_block_column(name), end.blocks)
        lines.append(line)
    return lines


def _block_cells(start: str, by_block: Sequence[float]) -> dict[str, float]:
    """Return contributions by block, by column.

    Six digits: intervals need no more, and files of many members stay small.
    """
    return {
        f"{start}{block}": float(f"{contribution:.6g}")
        for block, contribution in enumerate(by_block)
    }


def round_line(attributed: RoundAttribution) -> dict[str, object]:
    """Return a round's line of ``attribution_rounds.csv``, by column."""
    line: dict[str, object] = {"round": attributed.server_round}
    for name in _OF_ROUND:
        line[name] = getattr(attributed, name)
    return line
