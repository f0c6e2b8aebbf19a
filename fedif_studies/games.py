"""What games for a larger share bring in a statement: shares and verdicts of those who play.

Twenty members on digits, all of them in each of 30 rounds, with a budget: runs of the package
itself, statements of their records. The players are members of the middle, by what they contribute
when all are honest. A row has the share of the players, and what they have without the game, and
their verdicts; of the one whose contribution another lowers, those of the victim.
``--seeds 0`` measures nothing and prints the table. Statements need the extra ``consortium``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedif_consortium.parts import server_parts
from fedif_consortium.statement.account import Account, settle
from fedif_consortium.statement.records import read_run
from fedif_flower.attacks.scaling import HonestScaling
from fedif_flower.client.app import task_app
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.seeding import torch_generator
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_studies.audit.cases import PLAYS, Play, each, let_play
from fedif_studies.audit.federation import Trainer, collude
from fedif_studies.audit.members import AuditMember, AuditTask
from fedif_studies.lab.commands import Again
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "games-statements.csv"
MEMBERS, ROUNDS = 20, 30
STRATEGIES = ("fedavg", "fedif", "influence-descent")
BUDGET = "1000"


def _long(_: AuditTask, __: AuditMember) -> Mapping[str, Any]:
    return {"behaviour": HonestScaling(1.5)}


GAMES: Mapping[str, tuple[Play, int]] = {**PLAYS, "update times 1.5": (each(_long), 1)}


class Members:
    """The members of a federation as one client app: what each sends, round by round."""

    def __init__(self, task: AuditTask, members: Sequence[AuditMember]) -> None:
        self._members, self._seed = members, task.config.seed
        self._app, model = task_app(), task.new_model(self._seed)
        self._trainers = [Trainer(task, member, model, self._seed) for member in members]
        self._round, self._sent = 0, torch.zeros(0, 0)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message as one of the members."""
        if message.metadata.message_type != "train":
            return self._app(message, context)
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        received = torch.cat([array.flatten() for array in arrays.values()])
        self._train(received, int(str(message.content.config_records["config"]["server-round"])))
        number = context.node_id - FIRST_NODE_ID
        parts = torch.split(self._sent[number], [array.numel() for array in arrays.values()])
        own = zip(arrays.items(), parts, strict=True)
        sent = {name: part.view_as(array) for (name, array), part in own}
        claimed = int(self._members[number].claimed)
        content = RecordDict()
        content["arrays"] = ArrayRecord(sent)
        content["metrics"] = MetricRecord({"num-examples": claimed, "partition-id": number})
        return Message(content, reply_to=message)

    def _train(self, received: torch.Tensor, server_round: int) -> None:
        """Let all members train, once a round: those in league see each other's updates."""
        if server_round == self._round:
            return
        updates = [trainer.update(received, server_round) for trainer in self._trainers]
        rows = torch.stack(updates)  # [m, d]
        generator = torch_generator("audit-collusion", self._seed, server_round)
        collude(self._members, received, rows, generator)
        self._round, self._sent = server_round, received + rows


@cache
def task_of(epochs: int, seed: int) -> AuditTask:
    """Return data, model and splits."""
    sizes = {"num_clients": MEMBERS, "num_server_rounds": ROUNDS}
    return AuditTask.of(**sizes, local_epochs=epochs, seed=seed)


def account_of(
    task: AuditTask, members: Sequence[AuditMember], strategy: str
) -> tuple[Account, float]:
    """Return the account of a federation's statement, and the accuracy that it ends with."""
    with TemporaryDirectory() as folder:
        own: dict[str, Scalar] = {
            "strategy": strategy,
            "num-clients": len(members),
            "num-server-rounds": ROUNDS,
            "fraction-train": 1.0,
            "local-epochs": task.config.local_epochs,
            "seed": task.config.seed,
            "attribution": "simpson",
            "statement.budget": BUDGET,
            "attack": "none",
            "checkpoint-every": 0,
            "device": "cpu",
            "output-dir": folder,
            "run-name": "run",
        }
        config = RunConfig.from_run_config({**RunConfig.defaults(), **own}, server_parts())
        grid = LocalGrid(Members(task, members), len(members))
        run_dir = run_federation(grid, config, parts=server_parts())
        last = RunFolder(run_dir).rounds.read()[-1]
        return settle(read_run(run_dir)), float(last["test_accuracy"])


@cache
def honest(epochs: int, strategy: str, seed: int) -> tuple[Account, float]:
    """Return what :func:`account_of` does where nobody plays."""
    task = task_of(epochs, seed)
    return account_of(task, task.members, strategy)


def measure(cell: Row) -> list[Row]:
    """Return who has which share, and which verdict, in one federation."""
    epochs, strategy, seed = int(cell["epochs"]), str(cell["strategy"]), int(cell["seed"])
    play, count = GAMES[str(cell["game"])]
    before, _ = honest(epochs, strategy, seed)
    ranked = sorted(before.members, key=lambda member: member.contribution)
    start = (MEMBERS - count) // 2
    players = sorted(own.client_id - FIRST_NODE_ID for own in ranked[start : start + count])
    task = task_of(epochs, seed)
    members = let_play(task, players, play)
    after, accuracy = account_of(task, members, strategy)
    marked = [number for number, member in enumerate(members) if member.is_marked]
    playing_now = {own.client_id - FIRST_NODE_ID: own for own in after.members}
    honest_then = {own.client_id - FIRST_NODE_ID: own for own in before.members}
    share = sum(playing_now[number].share for number in marked)
    # Whom the players add was not there.
    honest_share = sum(honest_then[n].share for n in marked if n in honest_then)
    return [
        {
            "share": f"{share:.6g}",
            "honest_share": f"{honest_share:.6g}",
            "verdicts": " ".join(playing_now[number].verdict.level for number in marked),
            "paid": f"{sum(own.share for own in after.members):.6g}",
            "test_accuracy": f"{accuracy:.6g}",
        }
    ]


def gain(row: Mapping[str, str]) -> float:
    """Return a player's share over what it has without the game."""
    return float(row["share"]) / float(row["honest_share"])


def table(rows: Sequence[Mapping[str, str]]) -> ResultTable:
    """Return mean gains with their ranges over seeds, and in how many seeds all are accepted."""
    runs = sorted({(row["epochs"], row["strategy"]) for row in rows})
    lines = []
    for game in GAMES:
        line = [game]
        for run in runs:
            own = [r for r in rows if r["game"] == game and (r["epochs"], r["strategy"]) == run]
            gains = [gain(row) for row in own]
            accepted = sum("accept" in row["verdicts"] for row in own)
            told = "-"
            if own:
                mean = statistics.fmean(gains)
                told = f"{mean:.2f} ({min(gains):.2f}\N{EN DASH}{max(gains):.2f}), {accepted}"
            line.append(told)
        lines.append(line)
    heading = ["game", *(f"{strategy}, E = {epochs}" for epochs, strategy in runs)]
    return ResultTable("Games in statements", heading, lines, num_labels=1)


def main(
    seeds: Annotated[int, typer.Option(min=0, help="the seeds 0, 1 ...; 0: measure nothing")] = 3,
    epochs: Annotated[str, typer.Option(help="local epochs")] = "1,5",
    strategies: Annotated[str, typer.Option(help="names")] = ",".join(STRATEGIES),
    again: Again = False,
) -> None:
    """Play what is missing, and print the table."""
    runs = product(map(int, epochs.split(",")), strategies.split(","), range(seeds), GAMES)
    names = ("epochs", "strategy", "seed", "game")
    cells: list[Row] = [dict(zip(names, run, strict=True)) for run in runs]
    if cells:
        fill(CSV, cells, measure, again=again)
    print(*table(read_rows(CSV)).to_markdown(), sep="\n")


if __name__ == "__main__":
    typer.run(main)
