"""The federations that an audit looks at: honest ones, attacks, and games for a larger share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedif_flower.attacks import Behaviour, ClientRound, build_behaviour
from fedif_flower.attacks.free_riders import RepeatStep
from fedif_flower.attacks.label_noise import flip_labels
from fedif_flower.attacks.random_update import gaussian_of_length
from fedif_flower.attacks.scaling import HonestScaling
from fedif_flower.seeding import torch_generator
from fedif_studies.attacks.borrowed_steps import (
    AlternatingStep,
    BorrowedStep,
    GradientAndLastStep,
    MoreOfLastSteps,
    NoisyStep,
    OlderStep,
    SharedNoise,
    UndoneStep,
)
from fedif_studies.attacks.harm_and_repair import HarmAndRepair, HarmForRepair
from fedif_studies.attacks.lowered_scores import LowersAnother
from fedif_studies.attacks.opposed import OpposedSteps, OpposedUpdates
from fedif_studies.attacks.predicted_step import PredictedStep
from fedif_studies.attacks.synthetic_batch import SyntheticBatch
from fedif_studies.audit.members import AuditTask, Member

Case = Callable[[AuditTask, int], list[Member]]
"""Returns the members of a federation for a task and a seed."""
Play = Callable[[AuditTask, Sequence[Member]], list[Member]]
"""Takes those who play a game, and returns what they are instead: as many, or more."""
Change = Callable[[AuditTask, Member], Mapping[str, Any]]
"""Returns what of a player becomes another."""
IDENTITIES = 5  # Of one owner.


@dataclass
class NoisyUpdate(Behaviour):
    """Sends its honest update and noise that is ``factor`` > 0 times as long."""

    factor: float = 0.5

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters with noise."""
        length = self.factor * (own.trained - own.received).norm()
        return own.trained + gaussian_of_length(own.received, length, own.generator)


def playing(task: AuditTask, players: Sequence[int], play: Play) -> list[Member]:
    """Return a task's members, of whom some play; whom they add comes last.

    All who play are marked, unless the game marks some of them.
    """
    found = list(task.members)
    own = play(task, [found[i] for i in players])
    if not any(member.is_marked for member in own):
        own = [replace(member, is_marked=True) for member in own]
    for index, member in zip(players, own, strict=False):
        found[index] = member
    return found + own[len(players) :]


def game(play: Play, count: int = 1) -> Case:
    """Let ``count`` members play, from the seed's on."""

    def members(task: AuditTask, seed: int) -> list[Member]:
        m = task.config.num_clients
        return playing(task, [(seed + i) % m for i in range(min(count, m))], play)

    return members


def each(change: Change) -> Play:
    """Let every player change by itself."""
    return lambda task, own: [replace(member, **change(task, member)) for member in own]


def sends(build: Callable[[], Behaviour], count: int = 1, *, alike: bool = False) -> Case:
    """Let the players share one behaviour; ``alike``: and claim the mean of their examples."""

    def play(_: AuditTask, own: Sequence[Member]) -> list[Member]:
        behaviour, mean = build(), sum(member.claimed for member in own) / len(own)
        return [
            replace(member, behaviour=behaviour, claimed=mean if alike else member.claimed)
            for member in own
        ]

    return game(play, count)


def _claim(factor: float, task: AuditTask, member: Member) -> Mapping[str, Any]:
    """Claim so many times the examples, at most ten times the median as strategies bound it."""
    most = 10.0 * float(torch.tensor([one.claimed for one in task.members]).median())
    return {"claimed": min(factor * member.claimed, most)}


def _first_rounds(count: int, claim: float = 1.0, length: float = 1.0) -> Case:
    """Take part in the first rounds only, claim more there and send longer updates."""
    own = {"rounds": count, "behaviour": HonestScaling(length)}
    return game(each(lambda task, member: {**_claim(claim, task, member), **own}))


def _three_identities(task: AuditTask, own: Sequence[Member]) -> list[Member]:
    """Appear as three, each with all the data and noise of its own, half as long as its update."""
    count = len(task.members)
    ids = (own[0].identity, count, count + 1)
    return [replace(own[0], identity=identity, behaviour=NoisyUpdate()) for identity in ids]


@dataclass
class LongAndNoisy(NoisyUpdate):
    """Sends its honest update ``length`` > 0 times as long, and noise ``factor`` times as long."""

    length: float = 1.5

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters after a longer step, with noise."""
        longer = own.received + self.length * (own.trained - own.received)
        return super().poison_update(replace(own, trained=longer))


def _all_at_once(noise: float) -> Play:
    """Appear as three that claim twice their examples and send longer updates with noise."""

    def play(task: AuditTask, own: Sequence[Member]) -> list[Member]:
        found = _three_identities(task, own)
        change = {**_claim(2.0, task, own[0]), "behaviour": LongAndNoisy(noise)}
        return [replace(member, **change) for member in found]

    return play


def _lowers(is_victim: bool) -> Play:
    """Let the first lower what the second is credited with, and mark one of the two."""

    def play(_: AuditTask, own: Sequence[Member]) -> list[Member]:
        behaviour = LowersAnother()
        first = min(member.identity for member in own)  # As those in league are asked.
        return [
            replace(member, behaviour=behaviour, is_marked=(member.identity == first) != is_victim)
            for member in own
        ]

    return play


def _synthetic(alone: bool, _: AuditTask, __: Member) -> Mapping[str, Any]:
    """Train on a small synthetic batch that covers all labels, too or alone."""
    return {"behaviour": SyntheticBatch(alone=alone)}


def _five_identities(_: AuditTask, own: Sequence[Member]) -> list[Member]:
    """Appear as five, which send its update and share its examples."""
    return [replace(own[0], claimed=own[0].claimed / IDENTITIES)] * IDENTITIES


def _copy(task: AuditTask, member: Member) -> Mapping[str, Any]:
    """Train on the neighbour's examples instead of one's own."""
    other = task.members[(member.identity + 1) % len(task.members)]
    return {"pixels": other.pixels, "labels": other.labels, "claimed": other.claimed}


def _take_validation(task: AuditTask, _: Member) -> Mapping[str, Any]:
    """Train on the server's validation split, which data set and seed give away."""
    pixels, labels = task.examples(task.dataset.test, task.test_rows[0])
    return {"pixels": pixels, "labels": labels}


def _mislabelled(build: Callable[[], Behaviour], task: AuditTask, member: Member) -> dict[str, Any]:
    """Have wrong labels alone, and a behaviour."""
    drawn = torch_generator("audit-mislabelled", task.config.seed, member.identity)
    labels = flip_labels(member.labels, len(task.dataset.classes), 1.0, drawn)
    return {"labels": labels, "behaviour": build()}


def _few_examples(_: AuditTask, member: Member, share: float = 0.1) -> Mapping[str, Any]:
    """Hold the first share of one's part."""
    n = max(round(share * len(member.labels)), 1)
    return {"pixels": member.pixels[:n], "labels": member.labels[:n], "claimed": float(n)}


def marked(change: Change, share: float = 0.3) -> Case:
    """Let a share of the members, drawn by the seed, change."""
    return lambda task, seed: playing(task, task.marked(seed, share), each(change))


def attack(name: str, share: float = 0.3) -> Case:
    """Let a share of the members behave as a run config's ``attack`` says."""

    def change(task: AuditTask, member: Member) -> Mapping[str, Any]:
        config = task.config.replace(attack=name)
        acting = build_behaviour(config, partition_id=member.identity, seed=config.seed)
        return {"behaviour": acting}

    return marked(change, share)


HONEST = "honest"
LOWERS = "lowers another's contribution"
LOWERED = "its contribution is lowered by another"
SYNTHETIC = "a synthetic batch of all labels beside its own"
THREATS: Mapping[str, Case] = {
    "label noise": attack("label-noise"),
    "gradient noise": attack("gradient-noise"),
    "adversarial examples": attack("adversarial"),
    "returns the model": attack("free-rider"),
    "returns it with noise": attack("free-rider-noise"),
    "repeats the last step": attack("free-rider-step"),
    "few examples": marked(_few_examples),
    "backdoor": attack("pixel-trigger"),
}
# Who plays what, and how many: `fedif_studies.games` plays them in whole runs, too.
PLAYS: Mapping[str, tuple[Play, int]] = {
    LOWERS: (_lowers(is_victim=False), 2),
    LOWERED: (_lowers(is_victim=True), 2),
    SYNTHETIC: (each(partial(_synthetic, False)), 1),
    "a synthetic batch of all labels alone": (each(partial(_synthetic, True)), 1),
    **{
        f"three identities, claims twice, update times 1.5, noise {noise:g}": (
            _all_at_once(noise),
            1,
        )
        for noise in (0.5, 1.0)
    },
}
MANIPULATIONS: Mapping[str, Case] = {
    "five identities": game(_five_identities),
    "a neighbour's data": game(each(_copy)),
    **{
        f"update times {factor:g}": sends(partial(HonestScaling, factor))
        for factor in (10.0, 0.01, 1.5, 4.0)
    },
    **{
        f"opposed updates, k = {factor:g}": sends(partial(OpposedUpdates, factor), 2, alike=True)
        for factor in (1.0, 10.0, 100.0, 1000.0)
    },
    "opposed updates, k = 100, one round in five": sends(
        partial(OpposedUpdates, 100.0, every=5), 2, alike=True
    ),
    "opposed updates, one against three, k = 10": sends(OpposedUpdates, 4, alike=True),
    "opposed steps, k = 1": sends(partial(OpposedSteps, 1.0), 2, alike=True),
    "opposed steps, k = 10": sends(OpposedSteps, 2, alike=True),
    "opposed steps, one against three, k = 10": sends(OpposedSteps, 4, alike=True),
    "harm for repair": sends(HarmForRepair, 2),
    **{f"last step, k = {k:g}": sends(partial(RepeatStep, k)) for k in (1.0, 2.0, 4.0)},
    "step before last, k = 2": sends(OlderStep),
    "fifth step back, k = 2": sends(partial(OlderStep, back=5)),
    "last step and noise": sends(NoisyStep),
    "last step and shared noise": sends(SharedNoise, 4),
    "last step in odd rounds, own update in even": sends(AlternatingStep),
    "own update and last step": sends(partial(BorrowedStep, 1.0)),
    "own update and last step, twice as long": sends(BorrowedStep),
    "last step undone and done again": sends(UndoneStep),
    "harm and repair": sends(HarmAndRepair),
    "claims ten times its examples": game(each(partial(_claim, 10.0))),
    "claims twice its examples": game(each(partial(_claim, 2.0))),
    "three identities, same data, noise": game(_three_identities),
    "first 5 rounds": _first_rounds(5),
    "first 10 rounds, claims twice, update times 1.2": _first_rounds(10, 2.0, 1.2),
    "twice its part of the last steps": sends(MoreOfLastSteps),
    "own gradient and last step": sends(GradientAndLastStep),
    "trains on the validation split": game(each(_take_validation)),
    **{name: game(play, count) for name, (play, count) in PLAYS.items()},
    "all labels wrong": game(each(partial(_mislabelled, Behaviour))),
    "all labels wrong, predicted step (ACE)": game(each(partial(_mislabelled, PredictedStep))),
}
CASES: Mapping[str, Case] = {HONEST: lambda task, _: list(task.members), **THREATS, **MANIPULATIONS}
RETRAINED = (HONEST, "label noise")
