"""The base of all behaviours: an honest client, with a hook for each thing an attack can change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Normalize = Callable[[Tensor], Tensor]


class Behaviour:
    """An honest client; attacks override the hook they need.

    Every hook returns its input or a new tensor and never writes to its arguments. Randomness
    comes from the given generator (on the CPU), so that it does not depend on the process.
    """

    def poison_labels(
        self,
        labels: Tensor,
        num_classes: int,  # noqa: ARG002
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Return the labels ``[n]`` to train on; asked once, before the first training.

        Parameters
        ----------
        labels : Tensor
            ``[n]`` int64, the true classes in [0, num_classes).
        num_classes : int
            >= 2.
        generator : torch.Generator
            The same at every call for one client.
        """
        return labels

    def poison_inputs(
        self,
        model: nn.Module,  # noqa: ARG002
        pixels: Tensor,
        labels: Tensor,  # noqa: ARG002
        normalize: Normalize,  # noqa: ARG002
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Return the pixels ``[n, c, h, w]`` in [0, 1] to train on; asked at every round.

        Parameters
        ----------
        model : torch.nn.Module
            The received model, on the pixels' device; left as it is.
        pixels : Tensor
            ``[n, c, h, w]`` in [0, 1], before normalisation.
        labels : Tensor
            ``[n]`` int64.
        normalize : callable
            Pixels -> what the model takes; differentiable.
        generator : torch.Generator
            Another one at every round.
        """
        return pixels

    def poison_update(
        self,
        params: Tensor,
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Return the parameters ``[d]`` to send instead of the trained ones.

        Parameters
        ----------
        params : Tensor
            ``[d]``, the trainable parameters after training.
        generator : torch.Generator
            Another one at every round.
        """
        return params
