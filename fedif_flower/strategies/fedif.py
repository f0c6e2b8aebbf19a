"""FedIF: weights from how far each update goes down the validation loss."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.strategies.scored import ScoredStrategy
from fedif_flower.strategies.setup import require_kind
from fedif_flower.strategies.streaming import Noted, StreamRule
from fedif_flower.valuation import InfluenceValuation, Validation, Valuation
from fedif_flower.valuation.influence import influence_from, project_updates


class FedIF(ScoredStrategy):
    r"""FedIF: aggregate by the influence of each client's update on the validation loss.

    .. math:: \Phi_i = \left\langle \frac{w_{t-1} - w_i}{\lVert w_{t-1} - w_i \rVert},
              \nabla \ell(w_{t-1}, D') \right\rangle

    Paper: *Lightweight and Robust Federated Data Valuation*.

    Parameters
    ----------
    validation : Validation or InfluenceValuation
        The server's held-out set D' with model and loss; or how influence is measured on it, such
        as ``InfluenceValuation(validation, weight_normalization=False)``.
    gamma : float
        Rate of the smooth update, in (0, 1]; the paper: 0.3 (CIFAR-10), 0.4 (Fashion-MNIST).
    weighting : Weighting, optional
        How scores become weights (see :class:`~fedif_flower.strategies.scored.Weighting`).
    stages, callbacks, setup, and Flower's arguments
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.

    Examples
    --------
    >>> validation = Validation(model, inputs, targets)          # doctest: +SKIP
    >>> strategy = FedIF(validation, fraction_train=0.1)         # doctest: +SKIP
    >>> strategy.start(grid, ArrayRecord(model.state_dict()))    # doctest: +SKIP
    """

    made_of = MappingProxyType({**ScoredStrategy.made_of, "validation": InfluenceValuation})
    can_stream = True
    can_mask = True

    def valued(self, validation: Validation | Valuation, seed: int) -> InfluenceValuation:  # noqa: ARG002
        """Return the influence on a validation set, its gradient taken while clients train."""
        require_kind(self, "validation", validation, Validation, InfluenceValuation)
        if isinstance(validation, InfluenceValuation):
            return validation
        assert isinstance(validation, Validation)
        return InfluenceValuation(validation)

    def stream_rule(self, server_round: int) -> StreamRule:  # noqa: ARG002
        r"""Return 1, :math:`\Phi_i` and :math:`\Omega_i`, in which the weights are linear."""
        valuation = self.valued(self.valuation, self.seed)
        gradient = valuation.gradient(self.model.vectors.params, self.model.named_buffers).cpu()
        first: list[float] = []

        def note(reply: AcceptedReply, update: Tensor) -> Noted:
            squared_norm = torch.tensor([reply.squared_norm], dtype=torch.float64)
            projection = project_updates(update[None], gradient, squared_norm)
            normalized = valuation.weight_normalization
            phi = float(influence_from(projection, weight_normalization=normalized))
            # From the first on: differences between influences are small beside themselves.
            first.append(phi)
            notes = (float(projection.inner), projection.error)
            weight_score = float(self.ledger.scores_of([reply.node.client_id]))
            return Noted((1.0, phi - first[0], weight_score), notes)

        return note

    def needs_all_updates(self) -> str:
        """Return what makes weights depend on each other's scores in other ways, if anything."""
        if not self.weighting.round_normalization:
            return "without round_normalization negative weight scores count as 0"
        if self.ledger.bias_correction or self.guard:
            return "bias_correction and guards change each client's score on its own"
        return ""
