"""The cases of an audit: honest federations, attacks, and games for a larger share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

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
from fedif_studies.audit.members import MISBEHAVING, AuditMember, AuditTask

Case = Callable[[AuditTask, int], list[AuditMember]]
"""Returns the members of a federation for a task and a seed."""
Play = Callable[[AuditTask, Sequence[AuditMember]], list[AuditMember]]
"""Takes the players of a game and returns the members in their place: as many, or more."""
Change = Callable[[AuditTask, AuditMember], Mapping[str, Any]]
"""Returns new values for a player's fields of :class:`AuditMember`, by the field's name."""
IDENTITIES = 5  # The number of identities under which one owner takes part.
_FEW = 0.1  # The share of its examples that a member in the case "few examples" keeps.


class Game(NamedTuple):
    """What some members do for a larger share, and how many members play."""

    play: Play
    num_players: int = 1


@dataclass
class NoisyUpdate(Behaviour):
    """Sends its honest update plus noise that is ``factor`` > 0 times as long as the update."""

    factor: float = 0.5

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters with noise."""
        length = self.factor * (own.trained - own.received).norm()
        return own.trained + gaussian_of_length(own.received, length, own.generator)


def let_play(task: AuditTask, players: Sequence[int], play: Play) -> list[AuditMember]:
    """Return a task's members with the players replaced; members that the game adds come last.

    All who play are marked, unless the game itself marks some of them.
    """
    members = list(task.members)
    after_play = play(task, [members[index] for index in players])
    if not any(member.is_marked for member in after_play):
        after_play = [replace(member, is_marked=True) for member in after_play]
    # A game may return more members than play: the first ones take the players' places.
    for index, member in zip(players, after_play, strict=False):
        members[index] = member
    added = after_play[len(players) :]
    return members + added


def case_of_game(play: Play, count: int = 1) -> Case:
    """Return the case in which ``count`` members play: member number ``seed`` and the next ones."""

    def members(task: AuditTask, seed: int) -> list[AuditMember]:
        m = task.config.num_clients
        players = [(seed + i) % m for i in range(min(count, m))]
        return let_play(task, players, play)

    return members


def play_each(change: Change) -> Play:
    """Return the game in which every player changes its own fields."""

    def play(task: AuditTask, players: Sequence[AuditMember]) -> list[AuditMember]:
        return [replace(member, **change(task, member)) for member in players]

    return play


def sends(build: Callable[[], Behaviour], count: int = 1, *, alike: bool = False) -> Case:
    """Return the case in which ``count`` players share one behaviour object.

    If ``alike``, each of them claims the mean of their numbers of examples.
    """

    def play(_: AuditTask, players: Sequence[AuditMember]) -> list[AuditMember]:
        behaviour = build()
        acting = [replace(member, behaviour=behaviour) for member in players]
        if not alike:
            return acting
        mean = sum(member.claimed for member in players) / len(players)
        return [replace(member, claimed=mean) for member in acting]

    return case_of_game(play, count)


def _claim(factor: float, task: AuditTask, member: AuditMember) -> Mapping[str, Any]:
    """Claim ``factor`` times one's examples, but at most ten times the median.

    A run bounds claims in the same way.
    """
    claims = torch.tensor([other.claimed for other in task.members])
    most = 10.0 * float(claims.median())
    return {"claimed": min(factor * member.claimed, most)}


def _first_rounds(count: int, claim: float = 1.0, length: float = 1.0) -> Case:
    """Return the case of a member that takes part in the first ``count`` rounds only.

    There it claims ``claim`` times its examples, and sends ``length`` times its update.
    """
    behaviour = HonestScaling(length)

    def change(task: AuditTask, member: AuditMember) -> Mapping[str, Any]:
        return {**_claim(claim, task, member), "rounds": count, "behaviour": behaviour}

    return case_of_game(play_each(change))


def _three_identities(task: AuditTask, players: Sequence[AuditMember]) -> list[AuditMember]:
    """Take part under three identities, each with all of the data.

    Each sends its update with noise of its own, which is half as long as the update.
    """
    owner = players[0]
    count = len(task.members)
    identities = (owner.identity, count, count + 1)
    return [replace(owner, identity=identity, behaviour=NoisyUpdate()) for identity in identities]


@dataclass
class LongAndNoisy(NoisyUpdate):
    """Sends ``length`` > 0 times its honest update, plus noise ``factor`` times as long as that."""

    length: float = 1.5

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters after a longer step, with noise."""
        longer = own.received + self.length * (own.trained - own.received)
        return super().poison_update(replace(own, trained=longer))


def _all_at_once(noise: float) -> Play:
    """Return the game of three identities that claim twice, and send longer updates with noise."""

    def play(task: AuditTask, players: Sequence[AuditMember]) -> list[AuditMember]:
        claim = _claim(2.0, task, players[0])
        behaviour = LongAndNoisy(noise)
        return [
            replace(identity, behaviour=behaviour, **claim)
            for identity in _three_identities(task, players)
        ]

    return play


def _lowering(*, marks_victim: bool) -> Play:
    """Return the game in which one player lowers what the other is credited with.

    Either the victim is marked or the attacker is.
    """

    def play(_: AuditTask, players: Sequence[AuditMember]) -> list[AuditMember]:
        behaviour = LowersAnother()
        # Colluding members act in the order of their identities, and the first one is the attacker.
        first = min(member.identity for member in players)
        pair = []
        for member in players:
            is_victim = member.identity != first
            is_marked = is_victim == marks_victim
            pair.append(replace(member, behaviour=behaviour, is_marked=is_marked))
        return pair

    return play


def _synthetic(_: AuditTask, __: AuditMember, *, alone: bool) -> Mapping[str, Any]:
    """Train on a small synthetic batch of all labels, beside one's data or (``alone``) instead."""
    return {"behaviour": SyntheticBatch(alone=alone)}


def _five_identities(_: AuditTask, players: Sequence[AuditMember]) -> list[AuditMember]:
    """Take part under five identities, which send the owner's update and divide its examples."""
    owner = players[0]
    identity = replace(owner, claimed=owner.claimed / IDENTITIES)
    return [identity] * IDENTITIES


def _copy(task: AuditTask, member: AuditMember) -> Mapping[str, Any]:
    """Train on the neighbour's examples instead of one's own."""
    other = task.members[(member.identity + 1) % len(task.members)]
    return {"pixels": other.pixels, "labels": other.labels, "claimed": other.claimed}


def _take_validation(task: AuditTask, _: AuditMember) -> Mapping[str, Any]:
    """Train on the server's validation split, which follows from the data set and the seed."""
    validation_rows = task.test_rows[0]
    pixels, labels = task.examples(task.dataset.test, validation_rows)
    return {"pixels": pixels, "labels": labels}


def _mislabelled(
    build: Callable[[], Behaviour], task: AuditTask, member: AuditMember
) -> dict[str, Any]:
    """Have only wrong labels, and behave as ``build()`` does."""
    generator = torch_generator("audit-mislabelled", task.config.seed, member.identity)
    labels = flip_labels(member.labels, len(task.dataset.classes), 1.0, generator)
    return {"labels": labels, "behaviour": build()}


def _few_examples(_: AuditTask, member: AuditMember) -> Mapping[str, Any]:
    """Keep the first tenth of one's examples, at least one."""
    n = max(round(_FEW * len(member.labels)), 1)
    return {"pixels": member.pixels[:n], "labels": member.labels[:n], "claimed": float(n)}


def case_of_marked(change: Change, share: float = MISBEHAVING) -> Case:
    """Return the case in which a share of the members, drawn by the seed, changes."""
    play = play_each(change)
    return lambda task, seed: let_play(task, task.marked(seed, share), play)


def case_of_attack(name: str, share: float = MISBEHAVING) -> Case:
    """Return the case in which a share of the members makes an attack, named as in a run config."""

    def change(task: AuditTask, member: AuditMember) -> Mapping[str, Any]:
        config = task.config.replace(attack=name)
        acting = build_behaviour(config, partition_id=member.identity, seed=config.seed)
        return {"behaviour": acting}

    return case_of_marked(change, share)


HONEST = "honest"
LOWERS = "lowers another's contribution"
LOWERED = "its contribution is lowered by another"
SYNTHETIC = "a synthetic batch of all labels beside its own"
THREATS: Mapping[str, Case] = {
    "label noise": case_of_attack("label-noise"),
    "gradient noise": case_of_attack("gradient-noise"),
    "adversarial examples": case_of_attack("adversarial"),
    "returns the model": case_of_attack("free-rider"),
    "returns it with noise": case_of_attack("free-rider-noise"),
    "repeats the last step": case_of_attack("free-rider-step"),
    "few examples": case_of_marked(_few_examples),
    "backdoor": case_of_attack("pixel-trigger"),
}
# Games that `fedif_studies.games` plays in whole runs, too.
PLAYS: Mapping[str, Game] = {
    LOWERS: Game(_lowering(marks_victim=False), 2),
    LOWERED: Game(_lowering(marks_victim=True), 2),
    SYNTHETIC: Game(play_each(partial(_synthetic, alone=False))),
    "a synthetic batch of all labels alone": Game(play_each(partial(_synthetic, alone=True))),
    "three identities, claims twice, update times 1.5, noise 0.5": Game(_all_at_once(0.5)),
    "three identities, claims twice, update times 1.5, noise 1": Game(_all_at_once(1.0)),
}
MANIPULATIONS: Mapping[str, Case] = {
    "five identities": case_of_game(_five_identities),
    "a neighbour's data": case_of_game(play_each(_copy)),
    "update times 10": sends(partial(HonestScaling, 10.0)),
    "update times 0.01": sends(partial(HonestScaling, 0.01)),
    "update times 1.5": sends(partial(HonestScaling, 1.5)),
    "update times 4": sends(partial(HonestScaling, 4.0)),
    "opposed updates, k = 1": sends(partial(OpposedUpdates, 1.0), 2, alike=True),
    "opposed updates, k = 10": sends(partial(OpposedUpdates, 10.0), 2, alike=True),
    "opposed updates, k = 100": sends(partial(OpposedUpdates, 100.0), 2, alike=True),
    "opposed updates, k = 1000": sends(partial(OpposedUpdates, 1000.0), 2, alike=True),
    "opposed updates, k = 100, one round in five": sends(
        partial(OpposedUpdates, 100.0, every=5), 2, alike=True
    ),
    "opposed updates, one against three, k = 10": sends(OpposedUpdates, 4, alike=True),
    "opposed steps, k = 1": sends(partial(OpposedSteps, 1.0), 2, alike=True),
    "opposed steps, k = 10": sends(OpposedSteps, 2, alike=True),
    "opposed steps, one against three, k = 10": sends(OpposedSteps, 4, alike=True),
    "harm for repair": sends(HarmForRepair, 2),
    "last step, k = 1": sends(partial(RepeatStep, 1.0)),
    "last step, k = 2": sends(partial(RepeatStep, 2.0)),
    "last step, k = 4": sends(partial(RepeatStep, 4.0)),
    "step before last, k = 2": sends(OlderStep),
    "fifth step back, k = 2": sends(partial(OlderStep, back=5)),
    "last step and noise": sends(NoisyStep),
    "last step and shared noise": sends(SharedNoise, 4),
    "last step in odd rounds, own update in even": sends(AlternatingStep),
    "own update and last step": sends(partial(BorrowedStep, 1.0)),
    "own update and last step, twice as long": sends(BorrowedStep),
    "last step undone and done again": sends(UndoneStep),
    "harm and repair": sends(HarmAndRepair),
    "claims ten times its examples": case_of_game(play_each(partial(_claim, 10.0))),
    "claims twice its examples": case_of_game(play_each(partial(_claim, 2.0))),
    "three identities, same data, noise": case_of_game(_three_identities),
    "first 5 rounds": _first_rounds(5),
    "first 10 rounds, claims twice, update times 1.2": _first_rounds(10, 2.0, 1.2),
    "twice its part of the last steps": sends(MoreOfLastSteps),
    "own gradient and last step": sends(GradientAndLastStep),
    "trains on the validation split": case_of_game(play_each(_take_validation)),
    **{name: case_of_game(*game) for name, game in PLAYS.items()},
    "all labels wrong": case_of_game(play_each(partial(_mislabelled, Behaviour))),
    "all labels wrong, predicted step (ACE)": case_of_game(
        play_each(partial(_mislabelled, PredictedStep))
    ),
}
CASES: Mapping[str, Case] = {HONEST: lambda task, _: list(task.members), **THREATS, **MANIPULATIONS}
RETRAINED = (HONEST, "label noise")
