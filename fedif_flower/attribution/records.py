"""The records of path attribution: how much each client contributed to a round's decrease."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedif_flower.attribution.descent import Descent


@dataclass(frozen=True)
class MemberCredit:
    """What a client is credited with in a round, and how its update compares with what is usual.

    Attributes
    ----------
    credited : float
        In nats; at most the contribution, and the difference goes to nobody. Where a step is taken
        back, both are that step's with the other sign: it is at least the contribution then.
    length, weight, borrowed : float
        Its update's length, its mean weight, and the last step in its update, in multiples of what
        is usual; 0 for a client that sent none.
    opposed : float
        How far it is turned against another update: the negated cosine, in [0, 1].
    """

    credited: float
    length: float = 0.0
    weight: float = 0.0
    borrowed: float = 0.0
    opposed: float = 0.0


@dataclass(frozen=True)
class NoiseEnd:
    """What one client contributed to one round's step, if as many labels were wrong as at one end.

    The step is the same. Attributes are those of :class:`ClientAttribution`.

    Attributes
    ----------
    contribution, credited : float
        In nats of the loss that is corrected for that share.
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
        Who.
    coefficient : float
        What its update of this round was multiplied by; 0 for a client that sent none, but whose
        earlier updates are part of the step (a server's momentum).
    contribution : float
        In the unit of the validation loss (nats); positive: it lowered the loss.
    classes : tuple of float
        The part of it that comes from each class's examples; they sum to ``contribution``.
    credit : MemberCredit, optional
        Where credit is bounded.
    blocks : tuple of float
        The part of it that comes from each block of held-out examples (see
        :func:`~fedif_flower.attribution.path.block_contributions`); they sum to ``contribution``.
        Empty in rounds whose updates nobody sees.
    noise_ends : tuple of NoiseEnd
        The contribution at the lowest and at the highest share of wrong labels that the held-out
        set may have. Empty where the loss is not corrected, or that interval is not known, and in
        rounds whose updates nobody sees.
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
        """What it is credited with: the contribution where credit is not bounded."""
        return self.contribution if self.credit is None else self.credit.credited


@dataclass(frozen=True)
class RoundAttribution:
    """One round: the validation loss before and after, and what each client contributed.

    A round that failed has no clients, nor has one whose step led to where the loss is not finite.
    If a failed round took back the step before it, the contributions to that step are in it with
    the other sign: contributions always add up to what the model has gained. ``descent`` is what
    the gradients at both ends of its step say; ``None``: there was no step, or no finite figure.
    """

    server_round: int
    loss_before: float
    loss_after: float
    clients: tuple[ClientAttribution, ...] = ()
    descent: Descent | None = None

    @property
    def decrease(self) -> float:
        """By how much the loss fell; 0 where one of the two is not finite."""
        fell = self.loss_before - self.loss_after
        return fell if math.isfinite(fell) else 0.0

    @property
    def attributed(self) -> float:
        """The sum of the clients' contributions."""
        return math.fsum(client.contribution for client in self.clients)

    @property
    def remainder(self) -> float:
        """What nobody is credited with.

        The error of the quadrature rule, what changes of buffers (batch-norm statistics) did, and
        of a server's momentum what has faded.
        """
        return self.decrease - self.attributed

    @property
    def slope(self) -> float | None:
        """By how much the loss would have changed along its slope before the step."""
        return None if self.descent is None else self.descent.slope

    @property
    def smoothness(self) -> float | None:
        """How much the gradient turned, by the length of the step."""
        return None if self.descent is None else self.descent.smoothness

    @property
    def bound_held(self) -> bool | None:
        """Whether the loss rose by no more than the descent lemma's bound for one step."""
        if self.descent is None:
            return None
        return self.descent.is_held(self.loss_before, self.loss_after)


def take_back(client: ClientAttribution) -> ClientAttribution:
    """Return what a client contributes to a step back along the one that it contributed to."""
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
