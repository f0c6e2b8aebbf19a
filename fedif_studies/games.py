"""What games for a larger share bring, without bounds on credit and within them.

Twenty members on digits, all of them in each of 30 rounds, every game of
``fedif_studies/audit/games.py`` against FedAvg, FedIF and influence descent with their default
bounds. The players are members of the middle, by what they are due when all are honest. A row gives
the players' share of all that is paid, and what they have without the game. ``--open`` plays those
games alone that bounds stop least; ``--write`` puts their table into
``docs/methods/path-attribution.md``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Annotated

import typer
from torch import Tensor

from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.rows import read_rows
from fedif_flower.tables import ResultTable
from fedif_flower.valuation.credit import CreditBounds
from fedif_studies.audit.cases import HONEST
from fedif_studies.audit.federation import STRATEGIES, Watcher, federate
from fedif_studies.audit.findings import CORRELATIONS
from fedif_studies.audit.games import GAMES, OPEN
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.valuations import EXACT, WATCHERS, PaidPath
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row, put_tables

CSV = RESULTS / "games.csv"
PAGE = RESULTS.parent / "methods" / "path-attribution.md"
MEMBERS, ROUNDS = 20, 30
EPOCHS = (1, 5)
PAYS = 1.25  # What stands out in the table.
FEW = 10  # Members whose exact Shapley values are within reach.
TODAY, BOUNDED, SECRET = "today", "bounded", "bounded, secret data"
_UNBOUNDED_SECRET = "secret data"
ACCOUNTS: Mapping[str, Callable[[], Watcher]] = {
    TODAY: PaidPath,
    BOUNDED: lambda: PaidPath(CreditBounds()),
    _UNBOUNDED_SECRET: lambda: PaidPath(secret=True),
    SECRET: lambda: PaidPath(CreditBounds(), secret=True),
}


def config(epochs: int, members: int = MEMBERS) -> RunConfig:
    """Return the settings of a federation."""
    return RunConfig.from_run_config(
        default_run_config()
        | {
            "num-clients": members,
            "num-server-rounds": ROUNDS,
            "local-epochs": epochs,
            "device": "cpu",
        }
    )


@cache
def task_of(epochs: int, members: int = MEMBERS) -> AuditTask:
    """Return data, model and splits."""
    return AuditTask(config(epochs, members))


@cache
def play(
    epochs: int, strategy: str, seed: int, game: str, players: tuple[int, ...] = ()
) -> tuple[dict[str, Tensor], float]:
    """Return every account's values ``[m]``, and the accuracy that the model ends with.

    Members that a player adds come last.
    """
    task = task_of(epochs)
    members = GAMES[game].members(task, players) if game != HONEST else list(task.members)
    watchers = {name: build() for name, build in ACCOUNTS.items()}
    params = federate(
        task,
        members,
        seed=seed,
        rule=STRATEGIES[strategy](task.server.validation),
        watchers=list(watchers.values()),
    )
    values = {name: watcher.values for name, watcher in watchers.items()}
    return values, task.server.test.evaluate(params).accuracy


def measure(cell: Row) -> list[Row]:
    """Return the players' share by each account, in one federation."""
    epochs, strategy, seed, game = _place(cell)
    honest, accuracy = play(epochs, strategy, seed, HONEST)
    kind = GAMES["update times 4" if game == HONEST else game]
    players = list(kind.players(honest[TODAY]))
    values = honest
    if game != HONEST:
        values, accuracy = play(epochs, strategy, seed, game, tuple(players))
    added = range(MEMBERS, len(values[TODAY]))
    return [
        {
            "account": account,
            "share": f"{_share(values, account, [*players, *added]):.6g}",
            "honest_share": f"{_share(honest, account, players):.6g}",
            "test_accuracy": f"{accuracy:.6g}",
        }
        for account in ACCOUNTS
    ]


def paid(values: Mapping[str, Tensor], account: str) -> Tensor:
    """Return the members' shares ``[m]``: of the credits, or of the gain where that is more."""
    credit = values[account].clamp_min(0.0)
    raw = values[_UNBOUNDED_SECRET if account in (SECRET, _UNBOUNDED_SECRET) else TODAY]
    whole = credit.sum()
    if account in (BOUNDED, SECRET):
        whole = whole.maximum(raw.sum())
    return credit / whole


def agreements(cell: Row) -> list[Row]:
    """Return how bounded accounts of honest members compare with those of today, and exact ones."""
    epochs, strategy, seed, _ = _place(cell)
    task = task_of(epochs, FEW)
    watchers = {name: build() for name, build in ACCOUNTS.items()} | {EXACT: WATCHERS[EXACT]()}
    rule = STRATEGIES[strategy](task.server.validation)
    federate(task, task.members, seed=seed, rule=rule, watchers=list(watchers.values()))
    few = {name: watcher.values for name, watcher in watchers.items()}
    many, _ = play(epochs, strategy, seed, HONEST)
    found = []
    for account, against, values in (
        (TODAY, EXACT, few),
        (BOUNDED, EXACT, few),
        (BOUNDED, TODAY, many),
        (SECRET, _UNBOUNDED_SECRET, many),
        (_UNBOUNDED_SECRET, TODAY, many),
    ):
        for name, correlation in CORRELATIONS.items():
            value = correlation(values[account], values[against])
            found.append((account, f"{name} with {against}", value))
        if against == EXACT:
            continue
        change = changes(paid(values, against), after := paid(values, account))
        found.append((account, f"median change of shares of {against}", float(change.median())))
        found.append((account, f"largest change of shares of {against}", float(change.max())))
        found.append((account, f"paid, beside {against}", float(after.sum())))
    names = ("account", "figure", "value")
    return [
        dict(zip(names, (account, figure, f"{value:.6g}"), strict=True))
        for account, figure, value in found
    ]


def changes(before: Tensor, after: Tensor) -> Tensor:
    """Return by which part each share changes, for members that have one."""
    paying = before > 0.1 / len(before)  # Of a share of nearly nothing any change is large.
    return (after[paying] / before[paying] - 1.0).abs()


def _share(values: Mapping[str, Tensor], account: str, players: Sequence[int]) -> float:
    return float(paid(values, account)[list(players)].sum())


def gains(rows: Sequence[Mapping[str, str]]) -> dict[tuple[int, str, str, str], list[float]]:
    """Return players' shares in honest ones by (epochs, strategy, game, account).

    An honest share is the players' own; where that is less than half of an equal one, half of it:
    of nearly nothing any gain is large.
    """
    found: dict[tuple[int, str, str, str], list[float]] = {}
    for row in rows:
        if row["game"] == HONEST:
            continue
        count = GAMES[row["game"]].num_players
        honest = max(float(row["honest_share"]), 0.5 * count / MEMBERS)
        key = (int(row["epochs"]), row["strategy"], row["game"], row["account"])
        found.setdefault(key, []).append(float(row["share"]) / honest)
    return found


def open_table() -> ResultTable:
    """Return what games bring that bounds stop least, in honest shares within bounds."""
    found = gains(read_rows(CSV))
    runs = [(name, epochs) for name in STRATEGIES if "relative" not in name for epochs in EPOCHS]
    lines = []
    for game in OPEN:
        line = [game]
        for name, epochs in runs:
            own = found.get((epochs, name, game, BOUNDED), [])
            mean = statistics.fmean(own) if own else 0.0
            shown = f"**{mean:.2f}**" if mean > PAYS else f"{mean:.2f}"
            line.append(f"{shown} ({min(own):.2f} to {max(own):.2f})" if own else "-")
        lines.append(line)
    heading = ["game", *(f"{name}, E = {epochs}" for name, epochs in runs)]
    return ResultTable("Games", heading, lines, num_labels=1)


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 3,
    least: Annotated[bool, typer.Option("--open", help="those that bounds stop least")] = False,
    write: Annotated[bool, typer.Option("--write", help="put the table into the page")] = False,
) -> None:
    """Play what is missing, and print or write the table."""
    names = ("epochs", "strategy", "seed", "game")
    runs = list(product(range(seeds), EPOCHS, STRATEGIES))
    games = OPEN if least else (HONEST, *GAMES)
    cells: list[Row] = [
        dict(zip(names, (epochs, strategy, seed, game), strict=True))
        for (seed, epochs, strategy), game in product(runs, games)
        if not (least and "relative" in strategy)
    ]
    fill(CSV, cells, measure)
    if not least:
        honest: list[Row] = [
            {"epochs": epochs, "strategy": strategy, "seed": seed}
            for seed, epochs, strategy in runs
        ]
        fill(CSV.with_name("games-agreement.csv"), honest, agreements)
    lines = open_table().to_markdown()
    if write:
        put_tables(PAGE, {"open": lines})
    print(*lines, sep="\n")


def _place(cell: Row) -> tuple[int, str, int, str]:
    epochs, seed = int(str(cell["epochs"])), int(str(cell["seed"]))
    return epochs, str(cell["strategy"]), seed, str(cell.get("game"))


if __name__ == "__main__":
    typer.run(main)
