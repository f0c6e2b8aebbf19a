"""Study of how alike members' own parts are: honest members, and one owner under three names.

Twenty members on digits take part in each of 30 rounds of FedAvg. In some federations, one of them
takes part under three identities, which train on the same data and hide it by noise. The noise is
0.5 to 2 times as long as their updates. A row has a member's largest likeness to any other member,
by the measure of statements (:mod:`fedif_consortium.statement.own_parts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated

import numpy as np
import torch
import typer

from fedif_consortium.statement.own_parts import ALIKE, OwnPart, likeness, sketch
from fedif_flower.run.rows import read_rows
from fedif_studies.audit.cases import HONEST, NoisyUpdate, Play, let_play
from fedif_studies.audit.federation import AuditStep, federate
from fedif_studies.audit.members import AuditMember, AuditTask
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "twins-noise.csv"
MEMBERS = 20
ROUNDS = 30
ALPHAS = (0.1, 1.0, 10.0)
EPOCHS = (1, 5)
NOISE = (0.5, 1.0, 2.0)


def hidden(noise: float) -> Play:
    """Return the game in which one member takes part as three, each hidden by noise of its own.

    The noise is ``noise`` times as long as the update.
    """

    def play(task: AuditTask, players: Sequence[AuditMember]) -> list[AuditMember]:
        owner = players[0]
        count = len(task.members)
        identities = (owner.identity, count, count + 1)
        behaviour = NoisyUpdate(noise)
        return [replace(owner, identity=identity, behaviour=behaviour) for identity in identities]

    return play


def own_parts(steps: Sequence[AuditStep]) -> list[OwnPart]:
    """Return the own part of each member's updates; all members are in every round."""
    rounds = []
    for step in steps:
        lengths = step.rows.double().norm(dim=1, keepdim=True).clamp_min(1e-30)  # 0 stays 0.
        units = sketch(step.rows, 0) / lengths
        rounds.append(units - units.mean(dim=0))
    parts = torch.stack(rounds)  # [T, m, 256]
    squares = parts.square().sum(dim=(0, 2)).tolist()
    sums = parts.sum(dim=0).tolist()
    of_members = zip(squares, sums, strict=True)
    return [OwnPart(len(parts), square, total) for square, total in of_members]


def measure(cell: Row) -> list[Row]:
    """Return a row for each member of a federation, with its largest likeness to another one."""
    sizes = {"num_clients": MEMBERS, "num_server_rounds": ROUNDS}
    seed = int(cell["seed"])
    task = AuditTask.of(
        **sizes,
        local_epochs=int(cell["epochs"]),
        seed=seed,
        dirichlet_alpha=float(cell["alpha"]),
    )
    members = list(task.members)
    if cell["case"] != HONEST:
        noise = float(str(cell["case"]).split()[-1])
        members = let_play(task, [seed % MEMBERS], hidden(noise))
    _, steps = federate(task, members, seed=seed)
    alike = likeness(own_parts(steps))  # [m, m]
    np.fill_diagonal(alike, -1.0)  # A member's likeness to itself does not count.
    rows: list[Row] = []
    for member, most in zip(members, alike.max(axis=1), strict=True):
        rows.append({"marked": int(member.is_marked), "likeness": f"{most:.4f}"})
    return rows


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 3,
    again: Again = False,
) -> None:
    """Measure what is missing, and print who lies above the statement's bound."""
    cases = [HONEST, *(f"three identities, noise {noise:g}" for noise in NOISE)]
    cells: list[Row] = []
    for seed, epochs, alpha, case in product(range(seeds), EPOCHS, ALPHAS, cases):
        cells.append({"seed": seed, "epochs": epochs, "alpha": alpha, "case": case})
    complete = fill(CSV, cells, measure, again=again)
    rows = read_rows(CSV)
    for case in cases:
        values = likeness_in(rows, case)
        if values:
            spread = f"{min(values):.3f} to {max(values):.3f}"
            above = [value for value in values if value > ALIKE]
            print(f"{case}: {spread}, {len(above)} of {len(values)} above {ALIKE}")
    finish(complete)


def likeness_in(rows: Iterable[Mapping[str, str]], case: str) -> list[float]:
    """Return the likenesses of a case: of the owner's three identities, or of all if honest."""
    marked = "1"
    if case == HONEST:
        marked = "0"
    chosen = [row for row in rows if row["case"] == case and row["marked"] == marked]
    return [float(row["likeness"]) for row in chosen]


if __name__ == "__main__":
    run_study(main)
