"""Contributions as lines of ``attribution.csv`` and ``attribution_rounds.csv``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from fedif_flower.attribution.records import MemberCredit, RoundAttribution

CLASS_COLUMN = "contribution_class_"  # Followed by the class's number.
BLOCK_COLUMN = "contribution_block_"  # Followed by the block's number.
# Keys of provenance.json: each block's share of the held-out examples, and each class's share,
# where contributions are split by classes.
BLOCKS_KEY = "held_out_blocks"
CLASSES_KEY = "held_out_classes"

NOISE_ENDS = ("low", "high")  # The ends of the interval in which the share of wrong labels lies.

_OF_CLIENT = ("partition_id", "client_id", "coefficient", "contribution")
_OF_CREDIT = tuple(field.name for field in fields(MemberCredit))
OF_DESCENT = ("slope", "smoothness", "bound_held")
"""Columns of ``attribution_rounds.csv`` that earlier versions lack; no pay depends on them."""
_OF_ROUND = ("loss_before", "loss_after", "decrease", "attributed", "remainder", *OF_DESCENT)

COLUMNS = ("round", *_OF_CLIENT, *_OF_CREDIT)
"""The columns of ``attribution.csv``, before those of classes and blocks."""
ROUND_COLUMNS = ("round", *_OF_ROUND)
"""The columns of ``attribution_rounds.csv``."""


def split_columns(num_classes: int, num_blocks: int, *, has_noise_ends: bool = False) -> list[str]:
    """Return the columns of contributions by class, and by block of held-out examples.

    With ``has_noise_ends``, they are followed by the columns for the lowest and for the highest
    share of wrong labels.
    """
    columns = [f"{CLASS_COLUMN}{label}" for label in range(num_classes)]
    columns += [f"{BLOCK_COLUMN}{block}" for block in range(num_blocks)]
    if has_noise_ends:
        for end in NOISE_ENDS:
            columns += [noise_column("contribution", end), noise_column("credited", end)]
            columns += [f"{noise_block_column(end)}{block}" for block in range(num_blocks)]
    return columns


def noise_column(figure: str, end: str) -> str:
    """Return the column of a figure, such as ``"credited"``, at one of :data:`NOISE_ENDS`."""
    return f"{figure}_noise_{end}"


def noise_block_column(end: str) -> str:
    """Return what the columns of contributions by block at one end begin with."""
    return f"contribution_noise_{end}_block_"


def client_lines(attributed: RoundAttribution) -> list[dict[str, object]]:
    """Return a round's lines of ``attribution.csv``, one dict by column for each client."""
    lines = []
    for client in attributed.clients:
        line: dict[str, object] = {"round": attributed.server_round}
        for name in _OF_CLIENT:
            line[name] = getattr(client, name)
        # Without bounds of credit, the whole contribution is credited.
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
    """Return contributions by block as cells, by column.

    They are rounded to six digits: intervals need no more, and files of many members stay small.
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
