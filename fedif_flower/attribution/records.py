"""The records of path attribution: what each client contributed to each round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedif_flower.attribution.descent_bound import StepDescent


@dataclass(frozen=True)
class MemberCredit:
    """What a client is credited with in a round, and how its update compares with what is usual.

    Attributes
    ----------
    credited : float
        In nats. The credit is at most the contribution, and nobody gets the difference. Where a
        step is taken back, both have the other sign, and the credit is at least the contribution.
    length, weight, borrowed : float
        Its update's length, its mean weight, and the part of its update along the last steps, in
        multiples of what is usual; 0 for a client that sent no update in the round.
    opposed : float
        How far its update points against another one, in [0, 1]
        (:func:`~fedif_flower.attribution.credit.opposition`).
    """

    credited: float
    length: float = 0.0
    weight: float = 0.0
    borrowed: float = 0.0
    opposed: float = 0.0


@dataclass(frozen=True)
class NoiseEnd:
    """What one client contributed to one round's step, by the loss for another share of noise.

    The share of wrong labels is taken to be at one end of the interval in which it lies. The step
    is the same as in :class:`ClientAttribution`, and the attributes mean the same.

    Attributes
    ----------
    contribution, credited : float
        In nats of the loss that is corrected for this share of wrong labels.
    blocks : tuple of float
        The contribution by block; empty where it is not split.
    """

    contribution: float
    credited: float
    blocks: tuple[float, ...] = ()


@dataclass(frozen=True)
class ClientAttribution:
    """What one client contributed to one round's step.

    Attributes
    ----------
    partition_id, client_id : int
        The client.
    coefficient : float
        What its update of this round was multiplied by; 0 for a client that sent no update in this
        round, but whose earlier updates are part of the step (the server has momentum).
    contribution : float
        In the unit of the validation loss (nats); positive: it lowered the loss.
    classes : tuple of float
        The part of the contribution that comes from each class's examples; they sum to
        ``contribution``. Empty: it is not split by classes.
    credit : MemberCredit, optional
        ``None``: credit is not bounded.
    blocks : tuple of float
        The part of the contribution that comes from each block of held-out examples (see
        :func:`~fedif_flower.attribution.path.block_contributions`); they sum to ``contribution``.
        Empty: it is not split by blocks, as in rounds with masked updates.
    noise_ends : tuple of NoiseEnd
        The contribution for the lowest and for the highest share of wrong labels that the held-out
        set may have. Empty where the loss is not corrected, where the interval is not known, and in
        rounds with masked updates.
    carried : float
        The part of the contribution that comes from its updates of earlier rounds, which a server's
        momentum carries on.
    """

    partition_id: int
    client_id: int
    coefficient: float
    contribution: float
    classes: tuple[float, ...] = ()
    credit: MemberCredit | None = None
    blocks: tuple[float, ...] = ()
    noise_ends: tuple[NoiseEnd, ...] = ()
    carried: float = 0.0

    @property
    def credited(self) -> float:
        """What the client is credited with; the contribution where credit is not bounded."""
        return self.contribution if self.credit is None else self.credit.credited


@dataclass(frozen=True)
class RoundAttribution:
    """One round: the validation loss before and after, and what each client contributed.

    A round without a step has no clients, nor has a round whose step could not be attributed, for
    instance because the loss after it is not finite. A round that took back an earlier step has
    that step's contributions with the other sign, so that contributions over rounds add up to what
    the model has gained.

    Attributes
    ----------
    server_round : int
        The round's number, from 1.
    loss_before, loss_after : float
        The validation loss before and after the round; NaN where it could not be computed.
    clients : tuple of ClientAttribution
        One for each client whose updates are in the step.
    descent : StepDescent, optional
        What the gradients at both ends of the step say; ``None``: the round took no step, or a
        figure or one of the losses is not finite.
    """

    server_round: int
    loss_before: float
    loss_after: float
    clients: tuple[ClientAttribution, ...] = ()
    descent: StepDescent | None = None

    @property
    def decrease(self) -> float:
        """By how much the loss fell; 0 where the loss before or after is not finite."""
        fell = self.loss_before - self.loss_after
        return fell if math.isfinite(fell) else 0.0

    @property
    def attributed(self) -> float:
        """The sum of the clients' contributions."""
        return math.fsum(client.contribution for client in self.clients)

    @property
    def remainder(self) -> float:
        """The part of the decrease that no contribution explains.

        It holds the error of the quadrature rule, the effect of changed buffers (batch-norm
        statistics), noise that was added to the step, and old updates whose share in a server's
        momentum is too small to be followed.
        """
        return self.decrease - self.attributed

    @property
    def slope(self) -> float | None:
        """By how much the loss would have changed if it were linear; ``None``: not known."""
        return None if self.descent is None else self.descent.slope

    @property
    def smoothness(self) -> float | None:
        """How much the gradient changed, divided by the step's length; ``None``: not known."""
        return None if self.descent is None else self.descent.smoothness

    @property
    def bound_held(self) -> bool | None:
        """Whether the loss rose by no more than the descent lemma's bound; ``None``: not known."""
        if self.descent is None:
            return None
        return self.descent.is_held(self.loss_before, self.loss_after)


def take_back(client: ClientAttribution) -> ClientAttribution:
    """Return a client's contribution to the undoing of a step: its own with the other sign."""
    credit = client.credit
    if credit is not None:
        credit = replace(credit, credited=-credit.credited)
    return replace(
        client,
        coefficient=-client.coefficient,
        contribution=-client.contribution,
        classes=tuple(-value for value in client.classes),
        blocks=tuple(-value for value in client.blocks),
        credit=credit,
        noise_ends=tuple(_take_back_end(end) for end in client.noise_ends),
        carried=-client.carried,
    )


def _take_back_end(end: NoiseEnd) -> NoiseEnd:
    return NoiseEnd(
        contribution=-end.contribution,
        credited=-end.credited,
        blocks=tuple(-value for value in end.blocks),
    )
