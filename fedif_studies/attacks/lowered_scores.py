"""Lowered scores: an attack by which one member lowers the value of another's update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting


@dataclass
class LowersAnother(Colluder):
    r"""The first adds the second's update to its own, which lowers the second's credit.

    .. math:: u_1 \leftarrow c\,\lVert u_1 \rVert \frac{u_1 + k u_2}{\lVert u_1 + k u_2 \rVert}

    The second is honest, and the victim. If the step already contains :math:`u_2`, a second
    :math:`u_2` is worth less: the loss is flatter along it, and a rule that weighs by the loss
    needs it less. The attacker knows the victim's update of the same round, which a real member
    does not: Pejo et al., "On the Fragility of Contribution Evaluation in Federated Learning", 2025
    (arXiv:2509.19921), lower others' scores with access to honest gradients.

    Parameters
    ----------
    taken : float
        k > 0.
    factor : float
        c > 0.
    """

    taken: Annotated[float, Setting("k: factor of the other's update that is added", gt=0)] = 1.0
    factor: Annotated[float, Setting("c: how many times its own length it sends", gt=0)] = 1.2

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the updates ``[n, d]``, of which the first is changed."""
        if len(updates) < 2:
            return updates
        sent = updates.clone()
        joint_update = updates[0] + self.taken * updates[1]
        length = joint_update.norm()
        if length > 0:
            sent[0] = self.factor * updates[0].norm() / length * joint_update
        return sent
