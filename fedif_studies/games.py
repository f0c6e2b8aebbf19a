"""Study of games for a larger share in statements: the players' shares and verdicts.

Twenty members on digits take part in each of 30 rounds of a real run with a budget, and a statement
is made of the run's records. The players are the members in the middle, ranked by what they
contribute when all are honest. A row has the players' share with the game and without it, and their
verdicts. In games in which one member lowers another's contribution, these are the figures of the
member that the game marks. ``--seeds 0`` measures nothing and prints the table. Statements need the
extra ``consortium``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

import torch
import typer
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedif_consortium.parts import server_parts
from fedif_consortium.statement.account import Account, settle
from fedif_consortium.statement.member_account import MemberAccount
from fedif_consortium.statement.records import read_run
from fedif_flower.attacks.scaling import HonestScaling
from fedif_flower.client.app import task_app
from fedif_flower.messages.instructions import round_of
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar
from fedif_flower.strategies.registry import STRATEGIES as REGISTERED
from fedif_flower.tables import ResultTable
from fedif_studies.audit.cases import PLAYS, Game, let_play, play_each
from fedif_studies.audit.federation import Trainer, collude
from fedif_studies.audit.members import AuditMember, AuditTask
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.lab.lists import counts_in, names_in
from fedif_studies.lab.run import LABELS_AS_THEY_ARE
from fedif_studies.lab.table import grouped, print_markdown
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "games-statements.csv"
MEMBERS = 20
ROUNDS = 30
STRATEGIES = ("fedavg", "fedif", "influence-descent")
# Any amount: with a budget, `auto` bounds the lengths of updates as in a run that pays.
BUDGET = "1000"


def _long(_: AuditTask, __: AuditMember) -> Mapping[str, Any]:
    return {"behaviour": HonestScaling(1.5)}


GAMES: Mapping[str, Game] = {**PLAYS, "update times 1.5": Game(play_each(_long))}


class MembersApp:
    """A client app that answers for all members of a federation, as their behaviours say."""

    def __init__(self, task: AuditTask, members: Sequence[AuditMember]) -> None:
        self._members = members
        self._seed = task.config.seed
        self._app = task_app()
        model = task.new_model(self._seed)
        self._trainers = [Trainer(task, member, model, self._seed) for member in members]
        # The last round that was trained, and the parameters [m, d] that members send in it.
        self._round = 0
        self._sent = torch.zeros(0, 0)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message as one of the members."""
        if message.metadata.message_type != "train":
            return self._app(message, context)
        arrays = cast(ArrayRecord, message.content["arrays"]).to_torch_state_dict()
        received = torch.cat([array.flatten() for array in arrays.values()])
        server_round = cast(int, round_of(message))
        self._train(received, server_round)
        number = context.node_id - FIRST_NODE_ID
        pieces = torch.split(self._sent[number], [array.numel() for array in arrays.values()])
        sent = {}
        for (name, array), piece in zip(arrays.items(), pieces, strict=True):
            sent[name] = piece.view_as(array)
        claimed = int(self._members[number].claimed)
        content = RecordDict()
        content["arrays"] = ArrayRecord(sent)
        content["metrics"] = MetricRecord({"num-examples": claimed, "partition-id": number})
        return Message(content, reply_to=message)

    def _train(self, received: torch.Tensor, server_round: int) -> None:
        """Let all members train, once in a round, since accomplices see each other's updates."""
        if server_round == self._round:
            return
        updates = [trainer.update(received, server_round) for trainer in self._trainers]
        rows = torch.stack(updates)  # [m, d]
        generator = torch_generator("audit-collusion", self._seed, server_round)
        collude(self._members, received, rows, generator)
        self._round = server_round
        self._sent = received + rows


@cache
def task_of(epochs: int, seed: int) -> AuditTask:
    """Return the data, the model and the splits."""
    sizes = {"num_clients": MEMBERS, "num_server_rounds": ROUNDS}
    return AuditTask.of(**sizes, local_epochs=epochs, seed=seed)


def account_of(
    task: AuditTask, members: Sequence[AuditMember], strategy: str
) -> tuple[Account, float]:
    """Run a federation; return its statement's account, and the test accuracy at its end."""
    with TemporaryDirectory() as folder:
        settings: dict[str, Scalar] = {
            "strategy": strategy,
            "num-clients": len(members),
            "num-server-rounds": ROUNDS,
            "fraction-train": 1.0,
            "local-epochs": task.config.local_epochs,
            "seed": task.config.seed,
            "attribution": "simpson",
            "statement.budget": BUDGET,
            **LABELS_AS_THEY_ARE,
            "attack": "none",
            "checkpoint-every": 0,
            "device": "cpu",
            "output-dir": folder,
            "run-name": "run",
        }
        config = RunConfig.from_run_config({**RunConfig.defaults(), **settings}, server_parts())
        grid = LocalGrid(MembersApp(task, members), len(members))
        run_dir = run_federation(grid, config, parts=server_parts())
        last = RunFolder(run_dir).rounds.read()[-1]
        return settle(read_run(run_dir)), float(last["test_accuracy"])


@cache
def honest(epochs: int, strategy: str, seed: int) -> tuple[Account, float]:
    """Return the result of :func:`account_of` without a game."""
    task = task_of(epochs, seed)
    return account_of(task, task.members, strategy)


def measure(cell: Row) -> list[Row]:
    """Play a game in one federation; return a row with the players' shares and verdicts."""
    epochs = int(cell["epochs"])
    strategy = str(cell["strategy"])
    seed = int(cell["seed"])
    game = GAMES[str(cell["game"])]
    before, _ = honest(epochs, strategy, seed)
    task = task_of(epochs, seed)
    members = let_play(task, middle_members(before, game.num_players), game.play)
    after, accuracy = account_of(task, members, strategy)
    players = [number for number, member in enumerate(members) if member.is_marked]
    accounts_after = by_number(after)
    accounts_before = by_number(before)
    with_game = [accounts_after[player] for player in players]
    # Identities that players add do not exist without the game.
    without_game = [accounts_before[player] for player in players if player in accounts_before]
    verdicts = [account.verdict.level for account in with_game]
    row = {
        "share": f"{total_share(with_game):.6g}",
        "honest_share": f"{total_share(without_game):.6g}",
        "verdicts": " ".join(verdicts),
        "paid": f"{total_share(after.members):.6g}",
        "test_accuracy": f"{accuracy:.6g}",
    }
    return [row]


def middle_members(account: Account, count: int) -> list[int]:
    """Return the numbers of the ``count`` members in the middle of the ranked contributions."""
    ranked = sorted(account.members, key=lambda member: member.contribution)
    start = (MEMBERS - count) // 2
    middle = ranked[start : start + count]
    return sorted(member.client_id - FIRST_NODE_ID for member in middle)


def by_number(account: Account) -> dict[int, MemberAccount]:
    """Return members' accounts by the members' numbers in the federation."""
    return {member.client_id - FIRST_NODE_ID: member for member in account.members}


def total_share(accounts: Iterable[MemberAccount]) -> float:
    """Return the sum of members' shares."""
    return sum(account.share for account in accounts)


def gain(row: Mapping[str, str]) -> float:
    """Return the players' share divided by their share without the game; NaN if that is 0."""
    honest_share = float(row["honest_share"])
    if not honest_share:
        return math.nan
    return float(row["share"]) / honest_share


def table(rows: Sequence[Mapping[str, str]]) -> ResultTable:
    """Return a table of mean gains, their ranges over seeds, and how often a player is accepted.

    Seeds in which the players have no share without the game are left out of the means, and their
    number is shown.
    """
    by_run = grouped(rows, lambda row: (row["epochs"], row["strategy"]))
    heading = ["game"]
    lines = [[game] for game in GAMES]
    for epochs, strategy in sorted(by_run):
        heading.append(f"{strategy}, E = {epochs}")
        by_game = grouped(by_run[epochs, strategy], lambda row: row["game"])
        for line in lines:
            game = line[0]
            line.append(_shown_gains(by_game.get(game, [])))
    return ResultTable("Games in statements", heading, lines, num_labels=1)


def _shown_gains(rows: Sequence[Mapping[str, str]]) -> str:
    """Return as text the mean gain, its range, and the number of seeds with an accepted player."""
    gains = [factor for factor in map(gain, rows) if not math.isnan(factor)]
    if not gains:
        return "-"
    accepted = [row for row in rows if "accept" in row["verdicts"]]
    spread = f"{min(gains):.2f}\N{EN DASH}{max(gains):.2f}"
    shown = f"{statistics.fmean(gains):.2f} ({spread}), {len(accepted)}"
    missing = len(rows) - len(gains)
    if missing:
        shown += f"; nothing to compare in {missing} of {len(rows)} seeds"
    return shown


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 3,
    epochs: Annotated[str, typer.Option(help="local epochs")] = "1,5",
    strategies: Annotated[str, typer.Option(help="names")] = ",".join(STRATEGIES),
    again: Again = False,
) -> None:
    """Play what is missing, and print the table."""
    all_epochs = counts_in("epochs", epochs)
    names = names_in("strategies", strategies, REGISTERED)
    runs = product(all_epochs, names, range(seeds), GAMES)
    cells: list[Row] = []
    for num_epochs, strategy, seed, game in runs:
        cells.append({"epochs": num_epochs, "strategy": strategy, "seed": seed, "game": game})
    complete = fill(CSV, cells, measure, again=again)
    print_markdown(table(read_rows(CSV)))
    finish(complete)


if __name__ == "__main__":
    run_study(main)
