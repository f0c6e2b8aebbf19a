"""Contributions as lines of ``attribution.csv`` and ``attribution_rounds.csv``."""

from __future__ import annotations

from dataclasses import fields

from fedif_flower.attribution.records import MemberCredit, RoundAttribution

CLASS_COLUMN = "contribution_class_"  # With the class's number.
BLOCK_COLUMN = "contribution_block_"  # With the block's number: contributions there.
BLOCKS_KEY = "held_out_blocks"  # In the provenance: each block's part of the held-out examples.
CLASSES_KEY = "held_out_classes"  # There: each class's part, where contributions are split by them.

_OF_CLIENT = ("partition_id", "client_id", "coefficient", "contribution")
_OF_CREDIT = tuple(field.name for field in fields(MemberCredit))
OF_DESCENT = ("slope", "smoothness", "bound_held")
"""Columns of ``attribution_rounds.csv`` that earlier versions did not write; no pay is of them."""
_OF_ROUND = ("loss_before", "loss_after", "decrease", "attributed", "remainder", *OF_DESCENT)

COLUMNS = ("round", *_OF_CLIENT, *_OF_CREDIT)
"""Those of ``attribution.csv``, before those of classes and blocks."""
ROUND_COLUMNS = ("round", *_OF_ROUND)
"""Those of ``attribution_rounds.csv``."""


def split_columns(num_classes: int, num_blocks: int) -> list[str]:
    """Return the columns of contributions by class, and by block of held-out examples."""
    classes = [f"{CLASS_COLUMN}{label}" for label in range(num_classes)]
    blocks = [f"{BLOCK_COLUMN}{block}" for block in range(num_blocks)]
    return [*classes, *blocks]


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
        for block, contribution in enumerate(client.blocks):
            # Six digits: intervals need no more, and files of many members stay small.
            line[f"{BLOCK_COLUMN}{block}"] = float(f"{contribution:.6g}")
        lines.append(line)
    return lines


def round_line(attributed: RoundAttribution) -> dict[str, object]:
    """Return a round's line of ``attribution_rounds.csv``, by column."""
    line: dict[str, object] = {"round": attributed.server_round}
    for name in _OF_ROUND:
        line[name] = getattr(attributed, name)
    return line
