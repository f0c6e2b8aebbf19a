"""What a member that returns the model as it came is credited with, in whole runs on digits.

Twenty members with equally many examples, identically distributed, 25 rounds, six of them free
riders. The rows also have other attacks and several identities, which an earlier revision measured.
"""

from __future__ import annotations

import statistics

import typer

from fedif_flower.settings import Scalar
from fedif_studies.lab.run import federated, fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "contributions.csv"
SEEDS = 3
SETTINGS: dict[str, Scalar] = {
    **{"num-clients": 20, "fraction-train": 1.0, "num-server-rounds": 25, "local-epochs": 1},
    # Of the largest concentration, parts are alike in their classes and nearly in their sizes.
    **{"dirichlet-alpha": 1e6, "malicious-fraction": 0.3, "attribution": "simpson"},
}


def measure(cell: Row) -> list[Row]:
    """Return how much free riders have in means of honest members: of nats, and of Omega."""
    own = {"attack": str(cell["experiment"]), "strategy": str(cell["strategy"])}
    with federated({**SETTINGS, **own, "seed": int(str(cell["seed"]))}) as run:
        clients, attributed = run.clients.read(), run.attribution.read()
    marked = {row["client_id"] for row in clients if row["malicious"] == "1"}
    omega = {row["client_id"]: float(row["weight_score"] or "nan") for row in clients}
    nats = dict.fromkeys(omega, 0.0)
    for row in attributed:
        nats[row["client_id"]] += float(row["contribution"])
    found = {}
    for name, values in (("nats", nats), ("Omega", omega)):
        means = [
            statistics.fmean(value for client, value in values.items() if (client in marked) == bad)
            for bad in (True, False)
        ]
        found[f"marked / honest, {name}"] = means[0] / means[1]
    return [{"figure": name, "value": f"{value:.6g}"} for name, value in found.items()]


def main() -> None:
    """Run what is missing."""
    cells: list[Row] = [
        {"experiment": "free-rider", "strategy": "fedif", "seed": seed} for seed in range(SEEDS)
    ]
    fill(CSV, cells, measure)


if __name__ == "__main__":
    typer.run(main)
