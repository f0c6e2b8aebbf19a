"""Whom a quarantine leaves out: honest members by mistake, malicious ones rightly; what it gains.

Federations of 30 members on the digits, 10 a round, with and without ``quarantine.on = true``.
The thresholds of :mod:`fedif_flower.strategies.quarantine` were chosen on seeds 0 and 1; the
figures are of other seeds. The rows also have attacks in some rounds of eight, which an earlier
revision measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import product
from typing import Annotated

import typer

from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_studies.lab.run import federated, fill, last_ten
from fedif_studies.rows import RESULTS, Row

OUTPUT = RESULTS / "quarantine.csv"
SETTINGS: Mapping[str, Scalar] = {
    **{"num-clients": 30, "fraction-train": 1 / 3, "num-server-rounds": 60},
    "attribution": "simpson",
}
CASES: Mapping[str, Mapping[str, Scalar]] = {
    "honest": {},
    "honest, Dirichlet 0.3": {"dirichlet-alpha": 0.3},
    "label noise 30 %": {"attack": "label-noise", "malicious-fraction": 0.3},
    "sign flip 20 %": {"attack": "sign-flip", "malicious-fraction": 0.2},
    "on-off sign flip 20 %": {
        **{"attack": "sign-flip", "malicious-fraction": 0.2},
        **{"attack-first-round": 20, "attack-period": 20},
    },
    "gradient noise 30 %": {"attack": "gradient-noise", "malicious-fraction": 0.3},
    "pixel trigger 20 %": {"attack": "pixel-trigger", "malicious-fraction": 0.2},
}
STRATEGIES = ("fedavg", "fedif")


def measure(cell: Row) -> list[Row]:
    """Run the same federation without and with the policy."""
    chosen: dict[str, Scalar] = {
        **{"strategy": str(cell["strategy"]), "seed": int(str(cell["seed"]))},
        **CASES[str(cell["case"])],
    }
    with federated({**SETTINGS, **chosen}) as run:
        without = statistics.mean(last_ten(run))
    with federated({**SETTINGS, **chosen, "quarantine.on": True}) as run:
        clients, decisions, within = run.clients.read(), run.quarantine.read(), last_ten(run)
    malicious = {row["client_id"] for row in clients if row["malicious"] == "1"}
    honest = {row["client_id"] for row in clients} - malicious
    left_out = {row["client_id"] for row in decisions}
    first = [int(row["server_round"]) for row in decisions if row["client_id"] in malicious]
    return [
        {
            "honest": len(honest),
            "honest-left-out": len(left_out & honest),
            "malicious": len(malicious),
            "malicious-left-out": len(left_out & malicious),
            "first-round": min(first, default=""),
            "test-last-ten": round(statistics.mean(within), 4),
            "test-last-ten-without": round(without, 4),
        }
    ]


def table() -> ResultTable:
    """Return sums over seeds."""
    rows, lines = read_rows(OUTPUT), []
    for strategy, case in product(STRATEGIES, CASES):
        own = [row for row in rows if (row["case"], row["strategy"]) == (case, strategy)]
        if own:
            line = [case, strategy]
            for kind in ("honest", "malicious"):
                out, of = (
                    sum(int(row[name]) for row in own) for name in (f"{kind}-left-out", kind)
                )
                line.append(f"{out} of {of}" if of else "-")
            without, within = (
                f"{100 * statistics.mean(float(row[name]) for row in own):.1f}"
                for name in ("test-last-ten-without", "test-last-ten")
            )
            lines.append([*line, without, within])
    heading = ["members", "strategy", "honest left out", "malicious left out", "without", "with"]
    return ResultTable("Quarantine", heading, lines, num_labels=2)


def main(seeds: Annotated[int, typer.Option(help="so many, from 2 on")] = 2) -> None:
    """Measure what is missing, then print sums over seeds."""
    cells: list[Row] = [
        {"case": case, "strategy": strategy, "seed": seed}
        for seed, strategy, case in product(range(2, 2 + seeds), STRATEGIES, CASES)
    ]
    fill(OUTPUT, cells, measure)
    print(*table().to_markdown(), sep="\n")


if __name__ == "__main__":
    typer.run(main)
