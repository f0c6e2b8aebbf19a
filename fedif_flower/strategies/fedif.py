"""FedIF: weights from how far each update goes down the validation loss."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.scored import ScoredStrategy
from fedif_flower.strategies.streaming import Noted, StreamRule
from fedif_flower.valuation import InfluenceValuation, Validation
from fedif_flower.valuation.influence import influence_from, project_updates
from fedif_flower.valuation.score_guard import ScoreGuard


class FedIF(ScoredStrategy):
    r"""FedIF: aggregate by the influence of each client's update on the validation loss.

    .. math:: \Phi_i = \left\langle \frac{w_{t-1} - w_i}{\lVert w_{t-1} - w_i \rVert},
              \nabla \ell(w_{t-1}, D') \right\rangle

    Paper: *Lightweight and Robust Federated Data Valuation*.

    Parameters
    ----------
    validation : Validation
        The server's held-out set D' with model and loss.
    gamma : float
        Rate of the smooth update, in (0, 1]; the paper: 0.3 (CIFAR-10), 0.4 (Fashion-MNIST).
    weight_normalization : bool
        Divide by the norm of the update.
    round_normalization : bool
        Min-max over the round's clients.
    smooth_update : bool
        Smooth over rounds.
    bias_correction : bool
        Let a client of few rounds count as its own rounds say, instead of starting at 0.
    weight_scope : str
        ``"participants"`` or ``"population"``.
    guard : ScoreGuard, optional
        Options against scores that are farmed (see
        :class:`~fedif_flower.valuation.score_guard.ScoreGuard`).
    overlap : bool
        Take the validation gradient while the clients train.
    num_clients : int, optional
        All clients K, for ``weight_scope="population"``; default: every node seen so far.
    *flower, **base
        Flower's ``FedAvg`` arguments and those of
        :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.

    Examples
    --------
    >>> validation = Validation(model, inputs, targets)          # doctest: +SKIP
    >>> strategy = FedIF(validation, fraction_train=0.1)         # doctest: +SKIP
    >>> strategy.start(grid, ArrayRecord(model.state_dict()))    # doctest: +SKIP
    """

    def __init__(
        self,
        validation: Validation,
        *flower: Any,
        gamma: float = 0.3,
        weight_normalization: bool = True,
        round_normalization: bool = True,
        smooth_update: bool = True,
        bias_correction: bool = False,
        weight_scope: str = "participants",
        guard: ScoreGuard | None = None,
        overlap: bool = True,
        num_clients: int | None = None,
        **base: Unpack[BaseArguments],
    ) -> None:
        self.influence = InfluenceValuation(
            validation, weight_normalization=weight_normalization, overlap=overlap
        )
        super().__init__(
            self.influence,
            *flower,
            gamma=gamma,
            round_normalization=round_normalization,
            smooth_update=smooth_update,
            bias_correction=bias_correction,
            weight_scope=weight_scope,
            guard=guard,
            num_clients=num_clients,
            **base,
        )

    can_stream = True

    def stream_rule(self, server_round: int) -> StreamRule:  # noqa: ARG002
        r"""Return 1, :math:`\Phi_i` and :math:`\Omega_i`, in which the weights are linear."""
        valuation = self.influence
        gradient = valuation.gradient(self.model.vectors.params, self.model.named_buffers).cpu()
        first: list[float] = []

        def note(reply: AcceptedReply, update: Tensor) -> Noted:
            squared_norm = torch.tensor([reply.squared_norm], dtype=torch.float64)
            projection = project_updates(update[None], gradient, squared_norm)
            normalized = valuation.weight_normalization
            phi = float(influence_from(projection, weight_normalization=normalized))
            # From the first on: differences between influences are small beside themselves.
            first.append(phi)
            weight_score = float(self.ledger.scores_of([reply.node.client_id]))
            return Noted((1.0, phi - first[0], weight_score), (float(projection.inner),))

        return note

    def needs_all_updates(self) -> str:
        """Return what makes weights depend on each other's scores in other ways, if anything."""
        if not self.round_normalization:
            return "without round_normalization negative weight scores count as 0"
        if self.ledger.bias_correction or self.guard:
            return "bias_correction and guards change each client's score on its own"
        return ""
