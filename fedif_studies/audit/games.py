"""Games for a larger share: what one member, a pair or a group sends so as to be credited more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedif_flower.attacks import Behaviour
from fedif_flower.attacks.free_riders import RepeatStep
from fedif_flower.attacks.label_noise import flip_labels
from fedif_flower.attacks.scaling import HonestScaling
from fedif_flower.seeding import torch_generator
from fedif_flower.tasks.data import to_pixels
from fedif_studies.attacks.borrowed_steps import (
    AlternatingStep,
    BorrowedStep,
    NoisyStep,
    OlderStep,
    SharedNoise,
    UndoneStep,
)
from fedif_studies.attacks.harm_and_repair import HarmAndRepair, HarmForRepair
from fedif_studies.attacks.opposed import OpposedSteps, OpposedUpdates
from fedif_studies.attacks.predicted_step import PredictedStep
from fedif_studies.audit.members import AuditTask, Member
from fedif_studies.audit.play import GradientAndLastStep, MoreOfLastSteps, NoisyUpdate

WRONG_LABELS = "all labels wrong"
ACE = "all labels wrong, predicted step (ACE)"
Kind = Literal["alone", "pair", "group"]
PLAYERS: Mapping[Kind, int] = {"alone": 1, "pair": 2, "group": 4}


@dataclass(frozen=True)
class Game:
    """One way to be credited with more.

    Attributes
    ----------
    kind : {"alone", "pair", "group"}
        How many play it: 1, 2 or 4.
    play : callable
        ``(task, own members)`` -> what they are instead: as many, or more.
    has_data : bool
        Whether the players train on data of their own.
    """

    kind: Kind
    play: Callable[[AuditTask, Sequence[Member]], list[Member]]
    has_data: bool = True

    @property
    def num_players(self) -> int:
        """How many play it."""
        return PLAYERS[self.kind]

    def players(self, honest: Tensor) -> list[int]:
        """Return who plays it: members of the middle, by what they are due ``[m]`` if honest."""
        count = self.num_players
        start = (len(honest) - count) // 2
        return sorted(honest.argsort(stable=True).tolist()[start : start + count])

    def members(self, task: AuditTask, players: Sequence[int]) -> list[Member]:
        """Return all members of a federation in which it is played."""
        members = list(task.members)
        playing = self.play(task, [members[i] for i in players])
        places = [*players, *range(len(members), len(members) + len(playing) - len(players))]
        members += playing[len(players) :]
        for index, member in zip(places, playing, strict=True):
            members[index] = replace(member, is_marked=True)
        return members


def _all(build: Callable[[], Behaviour]) -> Callable[[AuditTask, Sequence[Member]], list[Member]]:
    """Let the players share one behaviour."""

    def play(task: AuditTask, own: Sequence[Member]) -> list[Member]:  # noqa: ARG001
        behaviour = build()
        return [replace(member, behaviour=behaviour) for member in own]

    return play


def _claim(factor: float) -> Callable[..., list[Member]]:
    """Claim so many times the examples, at most ten times the median as strategies bound it."""

    def play(task: AuditTask, own: Sequence[Member]) -> list[Member]:
        sizes = torch.tensor([member.claimed for member in task.members])
        most = 10.0 * float(sizes.median())
        return [replace(member, claimed=min(factor * member.claimed, most)) for member in own]

    return play


def _first_rounds(count: int, claim: float = 1.0, length: float = 1.0) -> Game:
    """Take part in the first rounds only, claim more there and send longer updates."""

    def play(task: AuditTask, own: Sequence[Member]) -> list[Member]:
        return [
            replace(member, rounds=count, behaviour=HonestScaling(length))
            for member in _claim(claim)(task, own)
        ]

    return Game("alone", play)


def _three_identities(task: AuditTask, own: Sequence[Member]) -> list[Member]:
    """Appear as three, each with all the data and noise of its own, half as long as its update."""
    count = len(task.members)
    return [
        replace(own[0], identity=identity, behaviour=NoisyUpdate())
        for identity in (own[0].identity, count, count + 1)
    ]


def _take_validation(task: AuditTask, own: Sequence[Member]) -> list[Member]:
    """Train on the server's validation split, which data set and seed give away."""
    images, labels = task.public_validation
    return [
        replace(member, pixels=to_pixels(images, task.dataset.max_value), labels=labels)
        for member in own
    ]


def _mislabelled(build: Callable[[], Behaviour]) -> Callable[..., list[Member]]:
    """Give the players wrong labels alone, and a behaviour."""

    def play(task: AuditTask, own: Sequence[Member]) -> list[Member]:
        seed, classes = task.config.seed, len(task.dataset.classes)
        wrong = [
            flip_labels(
                *(member.labels, classes, 1.0),
                torch_generator("audit-mislabelled", seed, member.identity),
            )
            for member in own
        ]
        played = _all(build)(task, own)
        return [replace(m, labels=labels) for m, labels in zip(played, wrong, strict=True)]

    return play


def _repeat(factor: float) -> Game:
    return Game("alone", _all(lambda: RepeatStep(factor)), has_data=False)


def _in_league(build: Callable[[], Behaviour]) -> Callable[..., list[Member]]:
    """Let the players share one behaviour, and claim equally many examples, as many in all."""

    def play(task: AuditTask, own: Sequence[Member]) -> list[Member]:
        claimed = sum(member.claimed for member in own) / len(own)
        return [replace(member, claimed=claimed) for member in _all(build)(task, own)]

    return play


def _opposed(kind: Kind, factor: float, every: int = 1) -> Game:
    return Game(kind, _in_league(lambda: OpposedUpdates(factor, every=every)))


def _opposed_steps(kind: Kind, factor: float, every: int = 1) -> Game:
    return Game(kind, _in_league(lambda: OpposedSteps(factor, every=every)))


GAMES: Mapping[str, Game] = {
    "opposed updates, k = 1": _opposed("pair", 1.0),
    "opposed updates, k = 10": _opposed("pair", 10.0),
    "opposed updates, k = 100": _opposed("pair", 100.0),
    "opposed updates, k = 1000": _opposed("pair", 1000.0),
    "opposed updates, k = 100, one round in five": _opposed("pair", 100.0, every=5),
    "opposed updates, one against three, k = 10": _opposed("group", 10.0),
    "opposed steps, k = 1": _opposed_steps("pair", 1.0),
    "opposed steps, k = 10": _opposed_steps("pair", 10.0),
    "opposed steps, one against three, k = 10": _opposed_steps("group", 10.0),
    "harm for repair": Game("pair", _all(HarmForRepair)),
    "last step, k = 1": _repeat(1.0),
    "last step, k = 2": _repeat(2.0),
    "last step, k = 4": _repeat(4.0),
    "step before last, k = 2": Game("alone", _all(OlderStep), has_data=False),
    "fifth step back, k = 2": Game("alone", _all(partial(OlderStep, back=5)), has_data=False),
    "last step and noise": Game("alone", _all(NoisyStep), has_data=False),
    "last step and shared noise": Game("group", _all(SharedNoise), has_data=False),
    "last step in odd rounds, own update in even": Game("alone", _all(AlternatingStep)),
    "own update and last step": Game("alone", _all(lambda: BorrowedStep(1.0))),
    "own update and last step, twice as long": Game("alone", _all(BorrowedStep)),
    "last step undone and done again": Game("alone", _all(UndoneStep), has_data=False),
    "update times 1.5": Game("alone", _all(lambda: HonestScaling(1.5))),
    "update times 4": Game("alone", _all(lambda: HonestScaling(4.0))),
    "harm and repair": Game("alone", _all(HarmAndRepair)),
    "claims ten times its examples": Game("alone", _claim(10.0)),
    "claims twice its examples": Game("alone", _claim(2.0)),
    "three identities, same data, noise": Game("alone", _three_identities),
    "first 5 rounds": _first_rounds(5),
    "first 10 rounds, claims twice, update times 1.2": _first_rounds(10, 2.0, 1.2),
    "twice its part of the last steps": Game("alone", _all(MoreOfLastSteps)),
    "own gradient and last step": Game("alone", _all(GradientAndLastStep)),
    "trains on the validation split": Game("alone", _take_validation),
    WRONG_LABELS: Game("alone", _mislabelled(Behaviour)),
    ACE: Game("alone", _mislabelled(PredictedStep)),
}
