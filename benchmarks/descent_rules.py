"""Aggregation rules that descend the validation loss, and those they are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.descent_federation import Round
from fedif_flower.round import combine
from fedif_flower.valuation.influence import influence_from, project_updates
from fedif_flower.valuation.ledger import ScoreLedger, min_max


@dataclass
class Rule:
    """Weighs a round; ``beta`` is the server's momentum, ``mu`` that of FedProx's clients."""

    beta: float = 0.0
    mu: float = 0.0

    def weigh(self, given: Round) -> Tensor:
        """Return coefficients ``[m]``: FedAvg's, unless a rule has its own."""
        return given.shares


class Oracle(Rule):
    """FedAvg without the malicious clients."""

    def weigh(self, given: Round) -> Tensor:
        """Return shares of the examples of the honest."""
        honest = torch.where(given.malicious, 0.0, given.counts)
        return honest / honest.sum() if honest.sum() > 0 else given.shares


@dataclass
class FedIF(Rule):
    """FedIF as published."""

    ledger: ScoreLedger = field(default_factory=lambda: ScoreLedger(0.4))

    def weigh(self, given: Round) -> Tensor:
        """Return smoothed, normalised influences."""
        _, gradient = given.judge.gradient(given.params)
        influence = influence_from(project_updates(given.updates, gradient))
        self.ledger.update(given.ids, min_max(influence))
        return self.ledger.weights(given.ids)


@dataclass
class Descent(Rule):
    """Influence descent; every field is a variant to try."""

    steps: int = 8
    eta: float = 1.0
    late_eta: float = 0.5  # From the fifth step on.
    scale: str = "max"  # Or "std": the deviation of the slopes under the weights.
    gain: float = math.inf  # Most deviations that a client's slope counts for upwards.
    backtrack: bool = False
    parts: int = 1  # Each step looks at one of so many parts of D'.
    held: bool = False  # The whole round looks at the same part.
    check: bool = False  # Weights that do not lower the loss on the other parts are not taken.
    bf16: bool = False
    worst: int = 0  # Descend the mean loss of so many classes, those that lose most.
    old_gradient: bool = False  # The first step takes the gradient at the old model.
    warm: float = 0.0  # How much of the client's last log-ratio it begins with.
    ahead: bool = False  # Descend the loss of the model with momentum.
    search: tuple[float, ...] = ()  # Lengths along the direction to try.
    floor: float = 0.0  # Least effective number of clients.
    cap: float = 0.0  # Most weight of a client, in shares of 1/m.
    pgd: float = 0.0  # Weight of the gradient on perturbed samples.
    clip: float = 0.0  # Updates are clipped to so many medians first.
    prior: float = 0.0  # Rate at which the mean of earlier ratios becomes the start.
    uniform: bool = False  # Begin with equal weights.
    average: bool = False  # Return the mean of the weights on the way.
    refused: int = 0
    memory: dict[int, float] = field(default_factory=dict)

    def weigh(self, given: Round) -> Tensor:
        """Return the weights that the descent ends with."""
        updates = given.updates
        if self.clip:
            norms = updates.norm(dim=1)
            updates = updates * (self.clip * norms.median() / norms).clamp(max=1.0)[:, None]
        old = given.params + (given.mean if self.ahead else 0.0)
        own = (1 - self.beta) * updates if self.ahead else updates
        start = torch.full_like(given.shares, 1 / len(given.ids)) if self.uniform else given.shares
        log = start.log() + torch.tensor(
            [(self.warm or self.prior) * self.memory.get(i, 0.0) for i in given.ids]
        )
        perturbed = given.perturbed() if self.pgd else None
        eta, last, way = self.eta, math.inf, []
        best, slope = log, None
        for k in range(self.steps):
            part = given.number + (0 if self.held else k)
            weights = log.softmax(0)
            at_old = self.old_gradient and k == 0
            params = old if at_old else combine(old, own, weights)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                loss, gradient = (
                    given.judge.worst(params, self.worst)
                    if self.worst
                    else given.judge.gradient(params, part, self.parts)
                )
            if perturbed is not None:
                loss2, gradient2 = perturbed.gradient(params, part, self.parts)
                given.judge.passes += 1 / self.parts
                loss, gradient = loss + self.pgd * loss2, gradient + self.pgd * gradient2
            if self.backtrack and not at_old and not loss <= last:
                eta /= 2
                assert slope is not None
                log = best - eta * slope
                continue
            if not at_old:
                best, last = log, loss
            slopes = -project_updates(own, gradient).inner
            slopes = slopes - weights @ slopes
            spread = slopes.abs().max() if self.scale == "max" else (weights @ slopes**2).sqrt()
            slope = (slopes / spread.clamp_min(1e-30)).clamp(min=-self.gain)
            rate = eta if self.backtrack or k < 4 else self.late_eta
            log = (best if not at_old else log) - rate * slope
            if self.floor or self.cap:
                log = self._held(log.softmax(0)).log()
            way.append(log.softmax(0))
        weights = torch.stack(way).mean(dim=0) if self.average else log.softmax(0)
        if self.check:
            losses = [
                sum(
                    given.judge.loss(combine(old, own, p), given.number + k, self.parts)
                    for k in range(1, self.parts)
                )
                for p in (start, weights)
            ]
            self.refused += losses[1] > losses[0]
            weights = weights if losses[1] <= losses[0] else start
        for i, ratio in zip(given.ids, (weights / given.shares).tolist(), strict=True):
            rate = self.prior or 1.0
            new = math.log(max(ratio, 1e-6))
            self.memory[i] = (1 - rate) * self.memory.get(i, 0.0) + rate * new
        if self.search:
            weights = weights * self._length(given, old, own, weights)
        if self.clip:
            weights = weights * (updates.norm(dim=1) / given.updates.norm(dim=1))
        return weights

    def _held(self, weights: Tensor) -> Tensor:
        """Mix with equal weights until enough clients count; cap the largest."""
        if self.cap:
            most = self.cap / len(weights)
            for _ in range(20):
                weights = weights.clamp(max=most)
                weights = weights / weights.sum()
        equal = torch.full_like(weights, 1 / len(weights))
        for mix in torch.linspace(0, 1, 21):
            mixed = (1 - mix) * weights + mix * equal
            if 1 / (mixed**2).sum() >= self.floor:
                return mixed
        return equal

    def _length(self, given: Round, old: Tensor, own: Tensor, weights: Tensor) -> float:
        step = combine(torch.zeros_like(old), own, weights)
        losses = {s: given.judge.loss(old + s * step) for s in self.search}
        return min(losses, key=lambda s: losses[s])


@dataclass
class Capped(Descent):
    """What the package does: deviations, a cap on the gain, and no step that raises the loss."""

    scale: str = "std"
    gain: float = 2.0
    backtrack: bool = True


@dataclass
class Greedy(Rule):
    """A mean that grows, client by client, while the loss falls."""

    def weigh(self, given: Round) -> Tensor:
        """Return shares of the examples of those chosen."""
        chosen: list[int] = []
        left = list(range(len(given.ids)))
        last = given.judge.loss(given.params)
        while left:
            losses = {i: given.judge.loss(self._model(given, [*chosen, i])) for i in left}
            best = min(losses, key=lambda i: losses[i])
            if losses[best] >= last:
                break
            last = losses[best]
            chosen.append(best)
            left.remove(best)
        return self._weights(given, chosen)

    @staticmethod
    def _weights(given: Round, chosen: list[int]) -> Tensor:
        weights = torch.zeros_like(given.counts)
        weights[chosen] = given.counts[chosen]
        return weights / weights.sum() if chosen else weights

    def _model(self, given: Round, chosen: list[int]) -> Tensor:
        return combine(given.params, given.updates, self._weights(given, chosen))


@dataclass
class Attributed(Rule):
    """n_i times the positive part of the contributions attributed so far, by the trapezoid."""

    sums: dict[int, float] = field(default_factory=dict)

    def weigh(self, given: Round) -> Tensor:
        """Return weights from this round's attribution of FedAvg's step added to earlier ones."""
        first = given.judge.gradient(given.params)[1]
        second = given.judge.gradient(combine(given.params, given.updates, given.shares))[1]
        inner = project_updates(given.updates, (first + second) / 2).inner
        for i, own in zip(given.ids, (given.shares * inner).tolist(), strict=True):
            self.sums[i] = self.sums.get(i, 0.0) + own
        positive = torch.tensor([max(self.sums[i], 0.0) for i in given.ids], dtype=torch.float64)
        weights = given.counts * positive
        return weights / weights.sum() if weights.sum() > 0 else given.shares


RULES: dict[str, Callable[[], Rule]] = {
    "fedavg": Rule,
    "fedavg+m": lambda: Rule(beta=0.5),
    "fedif": FedIF,
    "fedif+m": lambda: FedIF(beta=0.5),
    "oracle": Oracle,
    "oracle+m": lambda: Oracle(beta=0.5),
    # The quick search's own.
    "descent-8": Descent,
    "descent-8+m": lambda: Descent(beta=0.5),
    # Cost.
    "descent-4": lambda: Descent(steps=4),
    "descent-8-backtrack": lambda: Descent(backtrack=True),
    "descent-4-std": lambda: Descent(steps=4, scale="std"),
    "descent-8-std": lambda: Descent(steps=8, scale="std", late_eta=1.0),
    "descent-8-capped": lambda: Descent(scale="std", late_eta=1.0, gain=2.0, backtrack=True),
    "descent-4-capped": lambda: Descent(steps=4, scale="std", gain=2.0, backtrack=True),
    "descent-8-capped+m": lambda: Descent(
        scale="std", late_eta=1.0, gain=2.0, backtrack=True, beta=0.5
    ),
    "capped-8-quarter-held": lambda: Capped(parts=4, held=True),
    "capped-4-half-check": lambda: Capped(parts=2, held=True, steps=4, check=True),
    "capped-4-quarter-check": lambda: Capped(parts=4, held=True, steps=4, check=True),
    "capped-4-bf16": lambda: Capped(steps=4, bf16=True),
    "capped-4+m": lambda: Capped(steps=4, beta=0.5),
    "capped-4+m-ahead": lambda: Capped(steps=4, beta=0.5, ahead=True),
    "capped-4-quarter+m": lambda: Capped(steps=4, parts=4, held=True, beta=0.5),
    "capped-4-half+m": lambda: Capped(steps=4, parts=2, held=True, beta=0.5),
    "capped-6-quarter+m": lambda: Capped(steps=6, parts=4, held=True, beta=0.5),
    "capped-8-quarter+m": lambda: Capped(steps=8, parts=4, held=True, beta=0.5),
    "fedavg+m0.8": lambda: Rule(beta=0.8),
    "fedif+m0.8": lambda: FedIF(beta=0.8),
    "capped-8-quarter+m0.8": lambda: Capped(parts=4, held=True, beta=0.8),
    "capped-8-quarter+m0.9": lambda: Capped(parts=4, held=True, beta=0.9),
    "capped-8-quarter+m0.7": lambda: Capped(parts=4, held=True, beta=0.7),
    "capped-8-quarter-ahead+m0.8": lambda: Capped(parts=4, held=True, beta=0.8, ahead=True),
    "capped-8-quarter-search+m": lambda: Capped(
        parts=4, held=True, beta=0.5, search=(0.0, 0.5, 1.0, 1.5, 2.0)
    ),
    "capped-4-worst-3+m": lambda: Capped(steps=4, worst=3, beta=0.5),
    "capped-16+m": lambda: Capped(steps=16, beta=0.5),
    "capped-2+m": lambda: Capped(steps=2, beta=0.5),
    "capped-1+m": lambda: Capped(steps=1, beta=0.5),
    "capped-3-old+m": lambda: Capped(steps=3, old_gradient=True, beta=0.5),
    "capped-4-warm+m": lambda: Capped(steps=4, warm=0.5, beta=0.5),
    "capped-4-search+m": lambda: Capped(steps=4, search=(0.0, 0.5, 1.0, 1.5, 2.0), beta=0.5),
    "capped-4-floor-3+m": lambda: Capped(steps=4, floor=3.0, beta=0.5),
    "capped-4-floor-5+m": lambda: Capped(steps=4, floor=5.0, beta=0.5),
    "capped-4-cap+m": lambda: Capped(steps=4, cap=3.0, beta=0.5),
    "capped-4-uniform+m": lambda: Capped(steps=4, uniform=True, beta=0.5),
    "capped-4-prior+m": lambda: Capped(steps=4, prior=0.3, beta=0.5),
    "capped-4-pgd+m": lambda: Capped(steps=4, pgd=1.0, beta=0.5),
    "capped-4-clip+m": lambda: Capped(steps=4, clip=1.0, beta=0.5),
    "capped-4-fedprox+m": lambda: Capped(steps=4, mu=0.01, beta=0.5),
    "capped-4-bf16+m": lambda: Capped(steps=4, bf16=True, beta=0.5),
    "capped-4-average+m": lambda: Capped(steps=4, average=True, beta=0.5),
    "capped-4-quarter-check+m": lambda: Capped(parts=4, held=True, steps=4, check=True, beta=0.5),
    "capped-4-half-check+m": lambda: Capped(parts=2, held=True, steps=4, check=True, beta=0.5),
    "capped-8-half-held": lambda: Capped(parts=2, held=True),
    "capped-8-eighth-held": lambda: Capped(parts=8, held=True),
    "capped-6-quarter-held": lambda: Capped(parts=4, held=True, steps=6),
    "capped-4-quarter-held": lambda: Capped(parts=4, held=True, steps=4),
    "capped-4-half-held": lambda: Capped(parts=2, held=True, steps=4),
    "capped-8-eta-half": lambda: Capped(eta=0.5),
    "capped-8-floor-3": lambda: Capped(floor=3.0),
    "capped-8-floor-5": lambda: Capped(floor=5.0),
    "capped-8-uniform": lambda: Capped(uniform=True),
    "capped-8-warm": lambda: Capped(warm=0.5),
    "capped-4-warm": lambda: Capped(steps=4, warm=0.5),
    "capped-8-prior": lambda: Capped(prior=0.3),
    "capped-8-search": lambda: Capped(search=(0.0, 0.5, 1.0, 1.5, 2.0)),
    "capped-8-cap": lambda: Capped(cap=3.0),
    "capped-8-clip": lambda: Capped(clip=1.0),
    "capped-8-pgd": lambda: Capped(pgd=1.0),
    "capped-3-old": lambda: Capped(steps=3, old_gradient=True),
    "capped-2": lambda: Capped(steps=2),
    "capped-3": lambda: Capped(steps=3),
    "capped-16": lambda: Capped(steps=16),
    "capped-8+m": lambda: Capped(beta=0.5),
    "capped-8+m-ahead": lambda: Capped(beta=0.5, ahead=True),
    "capped-8-fedprox": lambda: Capped(mu=0.01),
    "descent-3-std": lambda: Descent(steps=3, scale="std"),
    "descent-2-std": lambda: Descent(steps=2, scale="std"),
    "descent-1-std": lambda: Descent(steps=1, scale="std"),
    "descent-3-std-old": lambda: Descent(steps=3, scale="std", old_gradient=True),
    "descent-4-quarters": lambda: Descent(steps=4, scale="std", parts=4),
    "descent-8-quarters": lambda: Descent(steps=8, scale="std", parts=4, eta=0.5),
    "descent-8-eighths": lambda: Descent(steps=8, scale="std", parts=8, eta=0.5),
    "descent-8-quarters-average": lambda: Descent(
        steps=8, scale="std", parts=4, eta=0.5, average=True
    ),
    "descent-3-warm": lambda: Descent(steps=3, scale="std", warm=0.5),
    "descent-4-quarters-warm": lambda: Descent(steps=4, scale="std", parts=4, warm=0.5),
    # Better still.
    "descent-8+m-ahead": lambda: Descent(beta=0.5, ahead=True),
    "descent-16": lambda: Descent(steps=16),
    "descent-search": lambda: Descent(search=(0.0, 0.5, 1.0, 1.5, 2.0)),
    "descent-floor": lambda: Descent(floor=3.0),
    "descent-floor5": lambda: Descent(floor=5.0),
    "descent-cap": lambda: Descent(cap=3.0),
    "descent-uniform": lambda: Descent(uniform=True),
    "descent-prior": lambda: Descent(prior=0.3),
    "descent-pgd": lambda: Descent(pgd=1.0),
    "descent-fedprox": lambda: Descent(mu=0.01),
    "descent-clip": lambda: Descent(clip=1.0),
    "greedy": Greedy,
    "greedy+m": lambda: Greedy(beta=0.5),
    "attributed": Attributed,
    "attributed+m": lambda: Attributed(beta=0.5),
}
