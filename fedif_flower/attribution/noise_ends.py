r"""Gradients at both ends of the interval in which the share of wrong held-out labels lies.

The loss is corrected for one share, :math:`\varepsilon`
(:class:`~fedif_flower.valuation.label_noise.ForwardCorrected`). Contributions are linear in its
gradient, so that the same step has other contributions where another share is the true one. Only
how much each example counts differs: its gradient in the logits is

.. math:: -\frac{(a - b)\, p_y}{q} \left(\mathbb{1}[k = y] - p_k\right), \qquad
          a = 1 - \varepsilon, \quad b = \frac{\varepsilon}{C - 1}, \quad q = a p_y + b (1 - p_y)

and one pass forward serves all shares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from torch import Tensor

from fedif_flower.valuation.validation import Validation


class NoiseEnds:
    """Takes the gradients at both ends, beside that of the loss itself.

    Parameters
    ----------
    validation : Validation
        Its :attr:`~fedif_flower.valuation.validation.Validation.noise_interval` says where the ends
        are; without one there are none.
    """

    def __init__(self, validation: Validation) -> None:
        self._validation = validation
        self._interval = validation.noise_interval or ()
        # Of the last two models: a step leads from one to the other.
        self._at_models: deque[tuple[Tensor, list[Tensor]]] = deque(maxlen=2)

    def __len__(self) -> int:
        """How many ends there are: 2, or none."""
        return len(self._interval)

    def at_model(self, params: Tensor, buffers: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the gradients ``[d]`` at the ends alone, at a model before or after a step.

        That of the loss itself is known there. A model is known by this very tensor, which must not
        change any more.
        """
        if not self._interval:
            return []
        for earlier_params, gradients in self._at_models:
            if earlier_params is params:
                return gradients
        gradients = self._validation.noise_gradients(self._interval, params, buffers)
        self._at_models.append((params, gradients))
        return gradients

    def with_loss(
        self, part: Validation, params: Tensor, buffers: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Return the gradient ``[d]`` of the loss itself, and behind it those at the ends.

        Parameters
        ----------
        part : Validation
            All of the held-out set, or examples of it.
        params, buffers
            The model.
        """
        noise = part.noise
        if not self._interval or isinstance(noise, Tensor):
            return [part.gradient(params, buffers)]
        return part.noise_gradients((noise, *self._interval), params, buffers)
