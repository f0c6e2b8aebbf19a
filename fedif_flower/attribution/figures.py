"""Contributions of a round's updates as tensors, measured by one loss or by several."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Figures:
    """What m updates contributed, measured by one loss, in nats.

    Attributes
    ----------
    credited, contribution : Tensor
        ``[m]``: the credited part of each contribution, and the contribution itself.
    classes : Tensor
        ``[m, c]``: the contribution by class; c = 0: it is not split by classes.
    blocks : Tensor
        ``[m, b]``: the contribution by block of held-out examples; b = 0: it is not split by
        blocks.
    """

    credited: Tensor
    contribution: Tensor
    classes: Tensor
    blocks: Tensor

    def __add__(self, other: Figures) -> Figures:
        """Return the sums, update by update."""
        return Figures(
            self.credited + other.credited,
            self.contribution + other.contribution,
            self.classes + other.classes,
            self.blocks + other.blocks,
        )

    def spread(self, rows: Tensor, num_rows: int) -> Figures:
        """Return figures of ``num_rows`` rows, in which update i is added to row ``rows[i]``.

        Rows without an update are 0.
        """

        def spread(figure: Tensor) -> Tensor:
            empty = figure.new_zeros(num_rows, *figure.shape[1:])
            return empty.index_add(0, rows, figure)

        return Figures(
            spread(self.credited),
            spread(self.contribution),
            spread(self.classes),
            spread(self.blocks),
        )

    def credited_with(self, place: int) -> float:
        """Return the credit in one row; the contribution where rounding puts the credit above."""
        return min(float(self.contribution[place]), float(self.credited[place]))


@dataclass(frozen=True)
class FiguresByLoss:
    """What the same updates contributed, measured by each of several losses.

    Attributes
    ----------
    loss : Figures
        Measured by the validation loss itself.
    ends : tuple of Figures
        Measured by the loss that is corrected for the lowest, and for the highest, share of wrong
        labels; empty where that interval is not known.
    """

    loss: Figures
    ends: tuple[Figures, ...] = ()

    def __add__(self, other: FiguresByLoss) -> FiguresByLoss:
        """Return the sums, loss by loss."""
        ends = zip(self.ends, other.ends, strict=True)
        return FiguresByLoss(
            self.loss + other.loss, tuple(end + other_end for end, other_end in ends)
        )

    def spread(self, rows: Tensor, num_rows: int) -> FiguresByLoss:
        """Return the figures in ``num_rows`` rows, as :meth:`Figures.spread` does."""
        return FiguresByLoss(
            self.loss.spread(rows, num_rows),
            tuple(end.spread(rows, num_rows) for end in self.ends),
        )
