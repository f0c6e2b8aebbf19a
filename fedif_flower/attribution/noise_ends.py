r"""Gradients for both ends of the interval in which the share of wrong held-out labels lies.

The validation loss is corrected for one share of wrong labels, :math:`\varepsilon`
(:class:`~fedif_flower.valuation.label_noise.ForwardCorrected`). If another share is the true one,
the same step has other contributions, since contributions are linear in the gradient of the loss.
For an example of label y, with the model's probabilities p of the C classes, the gradient in the
logit of class k is

.. math:: -\frac{(a - b)\, p_y}{q} \left(\mathbb{1}[k = y] - p_k\right), \qquad
          a = 1 - \varepsilon, \quad b = \frac{\varepsilon}{C - 1}, \quad q = a p_y + b (1 - p_y)

Another share changes only how much the example counts. So one forward pass serves all shares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from torch import Tensor

from fedif_flower.valuation.validation import Validation


class NoiseEnds:
    """Computes the gradients for both ends, beside the gradient of the loss itself.

    Parameters
    ----------
    validation : Validation
        The ends are those of its
        :attr:`~fedif_flower.valuation.validation.Validation.noise_interval`; without an interval
        there are none.
    """

    def __init__(self, validation: Validation) -> None:
        self._validation = validation
        self._interval = validation.noise_interval or ()
        # The gradients at the last two models: the model after a step is the one before the next.
        self._at_models: deque[tuple[Tensor, list[Tensor]]] = deque(maxlen=2)

    def __len__(self) -> int:
        """Return the number of ends: 2, or 0 without an interval."""
        return len(self._interval)

    def at_model(self, params: Tensor, buffers: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the gradient ``[d]`` for each end, at the model before or after a step.

        The gradient of the loss itself is not computed, since the caller has it at these models.

        Parameters
        ----------
        params : Tensor
            ``[d]``. The model is recognised by this tensor object, which must not change any more.
        buffers : mapping of str to Tensor
            The model's buffers by name.
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
        """Return the gradient ``[d]`` of the loss itself, followed by the gradient for each end.

        Parameters
        ----------
        part : Validation
            The held-out set, or a part of it.
        params : Tensor
            ``[d]``.
        buffers : mapping of str to Tensor
            The model's buffers by name.
        """
        noise = part.noise
        # A matrix [C, C] of noise has no interval of shares.
        if not self._interval or isinstance(noise, Tensor):
            return [part.gradient(params, buffers)]
        return part.noise_gradients((noise, *self._interval), params, buffers)
