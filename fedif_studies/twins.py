"""How alike members' own parts are: honest members', and those of one owner under three names.

Twenty members on digits, all of them in each of 30 rounds of FedAvg; one of them appears as three
that train on the same data and hide it by noise, so many times as long as their updates. A row has
how alike a member is to the one most like it, by the statement's own measure.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from fedif_studies.lab.commands import Again
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "twins-noise.csv"
MEMBERS, ROUNDS = 20, 30
ALPHAS, EPOCHS, NOISE = (0.1, 1.0, 10.0), (1, 5), (0.5, 1.0, 2.0)


def hidden(noise: float) -> Play:
    """Let one appear as three, each with noise so many times as long as its update."""

    def play(task: AuditTask, own: Sequence[AuditMember]) -> list[AuditMember]:
        count = len(task.members)
        ids = (own[0].identity, count, count + 1)
        return [replace(own[0], identity=i, behaviour=NoisyUpdate(noise)) for i in ids]

    return play


def own_parts(steps: Sequence[AuditStep]) -> list[OwnPart]:
    """Return what each member's updates have of their own; all are in every round."""
    rounds = []
    for step in steps:
        lengths = step.rows.double().norm(dim=1, keepdim=True).clamp_min(1e-30)
        units = sketch(step.rows, 0) / lengths
        rounds.append(units - units.mean(dim=0))
    parts = torch.stack(rounds)  # [T, m, 256]
    squares = parts.square().sum(dim=(0, 2)).tolist()
    sums = parts.sum(dim=0).tolist()
    return [OwnPart(len(parts), squares[i], own) for i, own in enumerate(sums)]


def measure(cell: Row) -> list[Row]:
    """Return how alike each member is to another, in one federation."""
    sizes = {"num_clients": MEMBERS, "num_server_rounds": ROUNDS}
    alpha, epochs, seed = float(cell["alpha"]), int(cell["epochs"]), int(cell["seed"])
    task = AuditTask.of(**sizes, local_epochs=epochs, seed=seed, dirichlet_alpha=alpha)
    members = list(task.members)
    if cell["case"] != HONEST:
        members = let_play(task, [seed % MEMBERS], hidden(float(str(cell["case"]).split()[-1])))
    _, steps = federate(task, members, seed=seed)
    found = likeness(own_parts(steps))
    np.fill_diagonal(found, -1.0)
    return [
        {"marked": int(member.is_marked), "likeness": f"{most:.4f}"}
        for member, most in zip(members, found.max(axis=1), strict=True)
    ]


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 3,
    again: Again = False,
) -> None:
    """Measure what is missing, and print who lies above the statement's bound."""
    cases = [HONEST, *(f"three identities, noise {noise:g}" for noise in NOISE)]
    names = ("seed", "epochs", "alpha", "case")
    runs = product(range(seeds), EPOCHS, ALPHAS, cases)
    cells: list[Row] = [dict(zip(names, run, strict=True)) for run in runs]
    if cells:
        fill(CSV, cells, measure, again=again)
    rows = read_rows(CSV)
    for case, marked in [(HONEST, "0"), *((case, "1") for case in cases[1:])]:
        own = [float(r["likeness"]) for r in rows if (r["case"], r["marked"]) == (case, marked)]
        if own:
            above = sum(value > ALIKE for value in own)
            print(f"{case}: {min(own):.3f} to {max(own):.3f}, {above} of {len(own)} above {ALIKE}")


if __name__ == "__main__":
    typer.run(main)
