"""What the updates of a round contributed, as tensors: by one loss, and by each loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Figures:
    """What m updates contributed by one loss, in nats.

    Attributes
    ----------
    credited, contribution : Tensor
        ``[m]``: what is credited of the contribution, and all of it.
    classes : Tensor
        ``[m, c]``: the contribution by class; c = 0 where it is not split.
    blocks : Tensor
        ``[m, b]``: the contribution by block of held-out examples; b = 0 likewise.
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
        """Return so many rows, in which the updates have those ``[m]`` and others are 0."""

        def spread(figure: Tensor) -> Tensor:
            of_all = figure.new_zeros(num_rows, *figure.shape[1:])
            return of_all.index_add(0, rows, figure)

        return Figures(
            spread(self.credited),
            spread(self.contribution),
            spread(self.classes),
            spread(self.blocks),
        )

    def credited_with(self, place: int) -> float:
        """Return what one is credited with: rounding may take a sum above the contribution."""
        return min(float(self.contribution[place]), float(self.credited[place]))


@dataclass(frozen=True)
class FiguresByLoss:
    """What the same updates contributed by each loss that they are measured by.

    Attributes
    ----------
    loss : Figures
        By the validation loss itself.
    ends : tuple of Figures
        By the loss at each end of the share of wrong labels; there may be none.
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
        """Return so many rows, as :meth:`Figures.spread` does."""
        return FiguresByLoss(
            self.loss.spread(rows, num_rows),
            tuple(end.spread(rows, num_rows) for end in self.ends),
        )
