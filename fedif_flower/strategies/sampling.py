"""The choice of the clients that train or evaluate in a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.seeding import numpy_generator


def sample_clients(
    nodes: Sequence[ClientNode],
    fraction: float,
    minimum: int,
    seed: int,
    server_round: int,
    probabilities: NDArray[np.float64] | None = None,
    purpose: str = "sample-clients",
    out_of: int | None = None,
) -> list[ClientNode]:
    """Draw a round's clients, without replacement, from (purpose, seed, round) alone.

    Parameters
    ----------
    nodes : sequence of ClientNode
        Who may be drawn, ordered by partition id.
    fraction : float
        Share to draw, in (0, 1].
    minimum : int
        Draw at least this many.
    seed, server_round : int
        What the draw depends on.
    probabilities : ndarray, optional
        ``[len(nodes)]``, > 0, sums to 1; ``None``: uniform.
    purpose : str
        What they are drawn for: each purpose has draws of its own.
    out_of : int, optional
        How many nodes ``fraction`` is a share of; default: those that may be drawn.
    """
    # 0.29 * 100 is 28.999...: the share is meant, not its rounding error.
    share = int(fraction * (out_of or len(nodes)) + 1e-9)
    size = min(max(share, minimum), len(nodes))
    generator = numpy_generator(purpose, seed, server_round)
    chosen = generator.choice(len(nodes), size=size, replace=False, p=probabilities)
    return [nodes[index] for index in sorted(chosen)]
