"""Mimic: all send one honest update, so that its owner's data count many times."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder


class Mimic(Colluder):
    r"""All send the one of their honest updates that differs most along the main direction.

    .. math::
        i^* = \arg\max_i |\langle z, u_i - \mu \rangle|, \quad
        z = \arg\max_{\lVert z \rVert = 1} \sum_i \langle z, u_i - \mu \rangle^2

    The main direction z is the first principal component of the accomplices' updates. No update is
    malicious by itself. But where clients' data differ, the repeated update outvotes the others.

    In the paper, the attackers choose an honest client in the first rounds and copy it from then
    on. Here they know each other's updates only, and choose anew in every round, since other
    accomplices take part in it. The paper's authors compare :math:`\langle z, u_i \rangle`, without
    the mean. This also depends on what all updates have in common, which sets no client apart.

    References
    ----------
    Karimireddy et al., 2022 (Byzantine-robust learning on heterogeneous datasets via bucketing),
    section 4.3.
    """

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the chosen update ``[k, d]``, the same for all."""
        centred = (updates - updates.mean(dim=0)).double()  # [k, d]
        # The projections of the k updates on z, up to a factor, are the eigenvector of the [k, k]
        # matrix with the largest eigenvalue. So no [d, d] matrix is needed.
        _, vectors = torch.linalg.eigh(centred @ centred.T)  # ascending
        most_different = int(vectors[:, -1].abs().argmax())
        return updates[most_different].expand_as(updates)
