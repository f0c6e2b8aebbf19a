"""The federations that an audit looks at: honest ones, attacks, and attempts to gain more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fedif_flower.attacks.scaling import HonestScaling
from fedif_studies.audit.games import GAMES, Game
from fedif_studies.audit.members import AuditTask, Member

Case = Callable[[AuditTask, int], list[Member]]
"""Returns the members of a federation for a task and a seed."""

IDENTITIES = 5  # Of one owner.
SCALED, SHRUNK = 10.0, 0.01


def owner(task: AuditTask, seed: int) -> int:
    """Return the member that tries to gain more with this seed."""
    return seed % task.config.num_clients


def _attack(name: str) -> Case:
    return lambda task, seed: task.with_attack(name, task.marked(seed))


def _split(task: AuditTask, seed: int) -> list[Member]:
    """One member appears as five, which send its update and share its examples."""
    index, members = owner(task, seed), task.members
    whole = members[index]
    part = replace(whole, claimed=whole.claimed / IDENTITIES, is_marked=True)
    return [*members[:index], *members[index + 1 :], *[part] * IDENTITIES]


def _copied(task: AuditTask, seed: int) -> list[Member]:
    """One member trains on its neighbour's examples instead of its own."""
    index, members = owner(task, seed), task.members
    other = members[(index + 1) % len(members)]
    copied = replace(other, identity=members[index].identity, is_marked=True)
    return [*members[:index], copied, *members[index + 1 :]]


def _scaled(factor: float) -> Case:
    def members(task: AuditTask, seed: int) -> list[Member]:
        index, honest = owner(task, seed), task.members
        scaled = replace(honest[index], behaviour=HonestScaling(factor), is_marked=True)
        return [*honest[:index], scaled, *honest[index + 1 :]]

    return members


HONEST = "honest"
THREATS: Mapping[str, Case] = {
    "label noise": _attack("label-noise"),
    "gradient noise": _attack("gradient-noise"),
    "adversarial examples": _attack("adversarial"),
    "returns the model": _attack("free-rider"),
    "returns it with noise": _attack("free-rider-noise"),
    "repeats the last step": _attack("free-rider-step"),
    "few examples": lambda task, seed: task.with_few_examples(task.marked(seed)),
    "backdoor": _attack("pixel-trigger"),
}


def _game(game: Game) -> Case:
    def members(task: AuditTask, seed: int) -> list[Member]:
        first, m = owner(task, seed), task.config.num_clients
        return game.members(task, [(first + i) % m for i in range(min(game.num_players, m))])

    return members


MANIPULATIONS: Mapping[str, Case] = {
    "five identities": _split,
    "a neighbour's data": _copied,
    f"update times {SCALED:g}": _scaled(SCALED),
    f"update times {SHRUNK:g}": _scaled(SHRUNK),
    **{name: _game(game) for name, game in GAMES.items()},
}
CASES: Mapping[str, Case] = {
    HONEST: lambda task, seed: list(task.members),  # noqa: ARG005
    **THREATS,
    **MANIPULATIONS,
}
RETRAINED = (HONEST, "label noise")
