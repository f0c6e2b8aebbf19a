"""What free riders, identities and equal members are credited with in whole runs on digits.

``python -m fedif_studies.contributions`` runs what ``docs/results/contributions.csv`` has not yet:

- twenty members with identically distributed, equally many examples, 25 rounds, FedIF and FedAvg:
  how far path attribution and the weight score Omega lie apart between them;
- the same with six members that return the model, or send noise;
- one of ten members as five identities, which send its update and divide its examples: by which
  factor its share changes, with FedAvg's weights and with FedIF's.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import torch

from fedif_flower.client.app import app as client_app
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar
from fedif_studies.audit.cases import CASES, HONEST, owner
from fedif_studies.audit.federation import RULES, federate
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.valuations import VALUATIONS
from fedif_studies.rows import RESULTS, append_rows

CSV = RESULTS / "contributions.csv"
MEMBERS, ROUNDS, SEEDS = 20, 25, 3
# Of the largest concentration, parts are alike in their classes and nearly in their sizes.
EQUAL = 1e6


class Line(NamedTuple):
    """One figure of one run."""

    experiment: str
    strategy: str
    seed: int
    figure: str
    value: float


def lines(known: set[tuple[str, str, int]]) -> Iterator[list[Line]]:
    """Yield the figures of one run after the other that are not known."""
    for seed in range(SEEDS):
        for strategy in ("fedif", "fedavg"):
            for attack in ("none", "free-rider", "random-update", "gradient-noise"):
                if (attack, strategy, seed) not in known:
                    yield _run(strategy, attack, seed)
        for rule in ("FedAvg", "FedIF"):
            if ("five identities", rule.lower(), seed) not in known:
                yield _identities(rule, seed)


def _run(strategy: str, attack: str, seed: int) -> list[Line]:
    """Run one federation and look at its members' sums."""
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Scalar] = {
            "num-clients": MEMBERS,
            "fraction-train": 1.0,
            "num-server-rounds": ROUNDS,
            "dirichlet-alpha": EQUAL,
            "local-epochs": 1,
            "strategy": strategy,
            "attack": attack,
            "malicious-fraction": 0.3,
            "attribution": "simpson",
            "checkpoint-every": 0,
            "seed": seed,
            "device": "cpu",
            "output-dir": folder,
        }
        config = RunConfig.from_run_config(default_run_config() | settings)
        run_dir = run_federation(LocalGrid(client_app, MEMBERS), config)
        clients = read_rows(run_dir / "clients.csv")
        attributed = read_rows(run_dir / "attribution.csv")
        rounds = read_rows(run_dir / "attribution_rounds.csv")
    marked = {row["client_id"] for row in clients if row["malicious"] == "1"}
    omega = {row["client_id"]: float(row["weight_score"] or "nan") for row in clients}
    nats = dict.fromkeys(omega, 0.0)
    for row in attributed:
        nats[row["client_id"]] += float(row["contribution"])
    decrease = sum(float(row["decrease"]) for row in rounds)
    total = sum(nats.values())
    found = {
        "decrease, nats": decrease,
        "attributed / decrease": total / decrease,
        "largest share": max(nats.values()) / total,
        "smallest share": min(nats.values()) / total,
    }
    honest = [value for client, value in nats.items() if client not in marked]
    if not marked:
        found["coefficient of variation, nats"] = _variation(list(nats.values()))
        if strategy == "fedif":
            found["coefficient of variation, Omega"] = _variation(list(omega.values()))
    else:
        bad = [nats[client] for client in marked]
        found["marked, largest absolute, in honest means"] = max(map(abs, bad)) / abs(
            statistics.fmean(honest)
        )
        found["marked / honest, nats"] = statistics.fmean(bad) / statistics.fmean(honest)
        if strategy == "fedif":
            scores = [omega[client] for client in marked]
            others = [value for client, value in omega.items() if client not in marked]
            ratio = statistics.fmean(scores) / statistics.fmean(others)
            found["marked / honest, Omega"] = ratio
    return [Line(attack, strategy, seed, name, value) for name, value in found.items()]


def _identities(rule: str, seed: int) -> list[Line]:
    """Compare a member's share with that of its five identities."""
    names = ("path attribution (simpson)", "FedIF Omega")
    task = AuditTask(
        RunConfig.from_run_config(
            default_run_config()
            | {"num-clients": 10, "num-server-rounds": 10, "local-epochs": 1, "device": "cpu"}
        )
    )
    shares: dict[str, list[float]] = {name: [] for name in names}
    for case in (HONEST, "five identities"):
        members = CASES[case](task, seed)
        watchers = {name: VALUATIONS[name]() for name in names}
        federate(task, members, seed=seed, rule=RULES[rule](), watchers=list(watchers.values()))
        own = torch.tensor([member.is_marked for member in members])
        if case == HONEST:
            own[owner(task, seed)] = True
        for name, watcher in watchers.items():
            shares[name].append(float(watcher.values[own].sum() / watcher.values.sum()))
    return [
        Line("five identities", rule.lower(), seed, f"share after / before, {name}", after / before)
        for name, (before, after) in shares.items()
    ]


def _variation(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


def main() -> None:
    """Run what is missing and print what there is."""
    torch.set_num_threads(1)
    there = read_rows(CSV)
    known = {(row["experiment"], row["strategy"], int(row["seed"])) for row in there}
    for found in lines(known):
        append_rows(CSV, Line._fields, found, digits=6)
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in read_rows(CSV):
        key = (row["experiment"], row["strategy"], row["figure"])
        groups.setdefault(key, []).append(float(row["value"]))
    for key, values in groups.items():
        each = ", ".join(f"{value:.4g}" for value in values)
        print(*key, f"mean {statistics.fmean(values):.4g} ({each})", sep=" | ")


if __name__ == "__main__":
    main()
