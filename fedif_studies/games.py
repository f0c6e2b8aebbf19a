"""What games for a larger share bring, by today's account and by bounded ones.

``python -m fedif_studies.games [--seeds 3] [--epochs 1 5]`` plays what is not yet in
``docs/results/games.csv`` (``--no-play``: nothing; ``--limits``: only what the page says of two
games that bounds do not stop): twenty members on digits, all of them in each
of 30 rounds, every game of ``fedif_studies/audit/games.py`` against FedAvg, FedIF and
influence descent with their default bounds. ``--write`` puts the
tables into ``docs/methods/path-attribution.md``.

The players are members of the middle, by what they are due when all are honest. A line gives the
players' share of all that is paid, and what they have without the game. ``--open`` plays those
games alone that bounds stop least, and ``--table`` prints their table, which stands on the page.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.rows import read_rows
from fedif_flower.valuation.credit import CreditBounds
from fedif_studies.audit.cases import HONEST
from fedif_studies.audit.federation import STRATEGIES, Watcher, federate
from fedif_studies.audit.findings import CORRELATIONS
from fedif_studies.audit.games import GAMES, OPEN
from fedif_studies.audit.members import AuditTask
from fedif_studies.audit.valuations import EXACT, WATCHERS, PaidPath
from fedif_studies.rows import RESULTS, append_rows, committed_revision, machine, put_tables

CSV = RESULTS / "games.csv"
PAGE = RESULTS.parent / "methods" / "path-attribution.md"
MEMBERS, ROUNDS = 20, 30
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


class Line(NamedTuple):
    """The players' share of what is paid by one account, in one federation."""

    epochs: int
    strategy: str
    seed: int
    game: str
    account: str
    share: float
    honest_share: float
    test_accuracy: float


class Agreement(NamedTuple):
    """How an account among honest members compares with another."""

    epochs: int
    strategy: str
    seed: int
    account: str
    figure: str
    value: float


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


def paid(values: Mapping[str, Tensor], account: str) -> Tensor:
    """Return the members' shares ``[m]``: of the credits, or of the gain where that is more."""
    credit = values[account].clamp_min(0.0)
    raw = values[_UNBOUNDED_SECRET if account in (SECRET, _UNBOUNDED_SECRET) else TODAY]
    whole = credit.sum()
    if account in (BOUNDED, SECRET):
        whole = whole.maximum(raw.sum())
    return credit / whole


def play(
    epochs: int,
    strategy: str,
    seed: int,
    game: str,
    players: Sequence[int],
    accounts: Mapping[str, Callable[[], Watcher]] = ACCOUNTS,
) -> tuple[dict[str, Tensor], float]:
    """Return every account's values ``[m]``, and the accuracy that the model ends with.

    Members that a player adds come last.
    """
    task = task_of(epochs)
    members = GAMES[game].members(task, players) if game != HONEST else list(task.members)
    watchers = {name: build() for name, build in accounts.items()}
    params = federate(
        task,
        members,
        seed=seed,
        rule=STRATEGIES[strategy](task.server.validation),
        watchers=list(watchers.values()),
    )
    values = {name: watcher.values for name, watcher in watchers.items()}
    return values, task.server.test.evaluate(params).accuracy


def lines(
    epochs: int, strategy: str, seed: int, known: set[str], wanted: Sequence[str] = tuple(GAMES)
) -> Iterator[list[Line]]:
    """Yield the lines of each wanted game that is not known."""
    if not {HONEST, *wanted} - known:
        return
    honest, accuracy = play(epochs, strategy, seed, HONEST, ())
    if HONEST not in known:
        middle = GAMES["update times 4"].players(honest[TODAY])
        shares = {account: _share(honest, account, middle) for account in ACCOUNTS}
        yield [
            Line(epochs, strategy, seed, HONEST, account, share, share, accuracy)
            for account, share in shares.items()
        ]
    for name in wanted:
        if name in known:
            continue
        players = GAMES[name].players(honest[TODAY])
        values, accuracy = play(epochs, strategy, seed, name, players)
        added = range(MEMBERS, len(values[TODAY]))
        yield [
            Line(
                *(epochs, strategy, seed, name, account),
                _share(values, account, [*players, *added]),
                _share(honest, account, players),
                accuracy,
            )
            for account in ACCOUNTS
        ]


def agreements(epochs: int, strategy: str, seed: int) -> list[Agreement]:
    """Return how bounded accounts of honest members compare with those of today, and exact ones."""
    task = task_of(epochs, FEW)
    watchers = {name: build() for name, build in ACCOUNTS.items()} | {EXACT: WATCHERS[EXACT]()}
    rule = STRATEGIES[strategy](task.server.validation)
    federate(task, task.members, seed=seed, rule=rule, watchers=list(watchers.values()))
    few = {name: watcher.values for name, watcher in watchers.items()}
    many, _ = play(epochs, strategy, seed, HONEST, ())
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
    return [Agreement(epochs, strategy, seed, *figure) for figure in found]


def changes(before: Tensor, after: Tensor) -> Tensor:
    """Return by which part each share changes, for members that have one."""
    paying = before > 0.1 / len(before)  # Of a share of nearly nothing any change is large.
    return (after[paying] / before[paying] - 1.0).abs()


def tighter_bound(borrowed: float, epochs: int = 1, strategy: str = "FedIF", seed: int = 0) -> str:
    """Return what another bound on what is borrowed leaves of a game, and costs honest members."""
    accounts = {TODAY: PaidPath, BOUNDED: lambda: PaidPath(CreditBounds(borrowed=borrowed))}
    honest, _ = play(epochs, strategy, seed, HONEST, (), accounts)
    game = "own update and last step"
    players = GAMES[game].players(honest[TODAY])
    values, _ = play(epochs, strategy, seed, game, players, accounts)
    own = max(_share(honest, BOUNDED, players), 0.5 * len(players) / MEMBERS)
    change = changes(paid(honest, TODAY), paid(honest, BOUNDED))
    return (
        f"{strategy}, {epochs} epochs, borrowed {borrowed:g}: {game} "
        f"{_share(values, BOUNDED, players) / own:.2f} honest shares; those of honest members "
        f"change by {change.median():.0%}, at most {change.max():.0%}"
    )


def beside_secret(epochs: int, strategy: str, seed: int = 0) -> str:
    """Return a share on the data that weigh, in that on secret data: the player's, and the largest.

    The largest is that of a member with a share, where all are honest.
    """
    game = "trains on the validation split"
    honest, _ = play(epochs, strategy, seed, HONEST, ())
    players = GAMES[game].players(honest[TODAY])
    values, _ = play(epochs, strategy, seed, game, players)
    (player,) = players
    own = paid(values, TODAY)[player] / paid(values, _UNBOUNDED_SECRET)[player]
    known, secret = paid(honest, TODAY), paid(honest, _UNBOUNDED_SECRET)
    largest = (known / secret)[secret > 0.1 / MEMBERS].max()
    return (
        f"{strategy}, {epochs} epochs: {own:.2f} for who {game}, {largest:.2f} for the honest "
        "member with most"
    )


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


def table(epochs: int) -> list[str]:
    """Return the gains as a Markdown table: today's account and the bounded ones."""
    found = gains(read_rows(CSV))
    names = list(STRATEGIES)
    accounts = (TODAY, BOUNDED, SECRET)
    heads = [f"{name}: {account}" for name in names for account in accounts]
    text = [f"| game | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    for game in GAMES:
        cells = []
        for name in names:
            for account in accounts:
                own = found.get((epochs, name, game, account))
                most = f" ({max(own):.2f})" if own and len(own) > 1 else ""
                cells.append(f"{statistics.fmean(own):.2f}{most}" if own else "-")
        text.append(f"| {game} ({GAMES[game].kind}) | {' | '.join(cells)} |")
    return text


def open_table() -> list[str]:
    """Return what games bring that bounds stop least, in honest shares within bounds."""
    found = gains(read_rows(CSV))
    names = [name for name in STRATEGIES if "relative" not in name]
    heads = [f"{name}, E = {epochs}" for name in names for epochs in (1, 5)]
    text = [f"| game | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    for game in OPEN:
        cells = []
        for name in names:
            for epochs in (1, 5):
                own = found.get((epochs, name, game, BOUNDED))
                shown = f"{statistics.fmean(own):.2f}" if own else "-"
                shown = f"**{shown}**" if own and statistics.fmean(own) > PAYS else shown
                cells.append(f"{shown} ({min(own):.2f} to {max(own):.2f})" if own else shown)
        text.append(f"| {game} | {' | '.join(cells)} |")
    return text


def honest_table() -> list[str]:
    """Return what bounds change where all members are honest: means over seeds."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in read_rows(CSV.with_name("games-agreement.csv")):
        key = (f"{row['strategy']}, E = {row['epochs']}", row["account"], row["figure"])
        found.setdefault(key, []).append(float(row["value"]))
    columns = {
        "Pearson / Spearman with exact values": (
            (BOUNDED, f"Pearson with {EXACT}"),
            (BOUNDED, f"Spearman with {EXACT}"),
        ),
        "with unbounded ones": (
            (BOUNDED, f"Pearson with {TODAY}"),
            (BOUNDED, f"Spearman with {TODAY}"),
        ),
        "change of a share, median / largest": (
            (BOUNDED, f"median change of shares of {TODAY}"),
            (BOUNDED, f"largest change of shares of {TODAY}"),
        ),
        "paid": ((BOUNDED, f"paid, beside {TODAY}"),),
    }
    text = [f"| strategy | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for run in dict.fromkeys(key[0] for key in found):
        cells = [
            " / ".join(f"{statistics.fmean(found[run, *figure]):.3f}" for figure in figures)
            for figures in columns.values()
        ]
        text.append(f"| {run} | {' | '.join(cells)} |")
    return text


def write_page(epochs: Sequence[int]) -> None:
    """Put the tables between the page's marks."""
    games: list[str] = []
    for number in epochs:
        seeds = {row["seed"] for row in read_rows(CSV) if row["epochs"] == str(number)}
        if seeds:
            games += [f"Local epochs: {number}; seeds: {len(seeds)}.", "", *table(number), ""]
    put_tables(PAGE, {"games": games[:-1], "honest": honest_table(), "open": open_table()})


def main() -> None:
    """Play what is missing, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--play", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--open", action="store_true", help="the games that bounds stop least")
    parser.add_argument("--table", action="store_true", help="print their table, play nothing")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    parser.add_argument("--limits", action="store_true", help="two games that bounds do not stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("fedif_flower").setLevel(logging.ERROR)
    if options.table:
        print(*open_table(), sep="\n")
        return
    if options.limits:
        print(*(tighter_bound(bound) for bound in (1.6, 1.0)), sep="\n")
        for epochs in options.epochs:
            for strategy in STRATEGIES:
                print(beside_secret(epochs, strategy), flush=True)
        return
    agreement = CSV.with_name("games-agreement.csv")
    wanted = OPEN if options.open else tuple(GAMES)
    columns = (*Line._fields, "revision", "processor")
    measured = (committed_revision(), machine()["processor"]) if options.play else ()
    for seed in range(options.seeds if options.play else 0):
        for epochs in options.epochs:
            for strategy in STRATEGIES:
                if options.open and "relative" in strategy:
                    continue
                key = (str(epochs), strategy, str(seed))
                there = read_rows(CSV)
                known = {r["game"] for r in there if (r["epochs"], r["strategy"], r["seed"]) == key}
                for found in lines(epochs, strategy, seed, known, wanted):
                    rows = [(*line, *measured) for line in found]
                    append_rows(CSV, columns, rows, digits=6)
                if options.open:
                    continue
                done = read_rows(agreement)
                if key not in {(r["epochs"], r["strategy"], r["seed"]) for r in done}:
                    own = agreements(epochs, strategy, seed)
                    append_rows(agreement, Agreement._fields, own, digits=6)
    if options.write:
        write_page(options.epochs)
    for epochs in options.epochs:
        print(f"\nepochs: {epochs}", *table(epochs), sep="\n")


if __name__ == "__main__":
    main()
