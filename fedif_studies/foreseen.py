"""Study of what liars gain who foresee the server's draws: ``python -m fedif_studies.foreseen``.

Twenty members send updates of 20,000 coordinates: the step that all have in common, which is
positive in 60 % of the coordinates, and noise of their own, which is twice as long. Four of them
are liars, whose updates are as long as the others'. They reckon with the server's draws, or do what
is best without knowing them. A line of ``docs/results/foreseen.csv`` has the means over ten rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from statistics import mean

import torch
from torch import Tensor

from fedif_flower.aggregators import DnC, Flame, SignGuard
from fedif_flower.aggregators.dnc import COORDINATES
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.run.rows import read_rows
from fedif_flower.seeding import numpy_generator, torch_generator
from fedif_flower.server.nodes import sample_clients
from fedif_flower.stages.bucketing import Bucketing
from fedif_flower.tables import ResultTable
from fedif_flower.valuation.shapley.permutation import marginal_contributions, random_permutations
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "foreseen.csv"
MEMBERS = 20
LIARS = 4
SIZE = 20_000  # Coordinates; DnC looks at 10,000 of them.
POSITIVE = 0.6
NOISE = 2.0  # Length of a member's own noise, in lengths of the step.
ROUNDS = 10
SERVER_SEED = 1
CROWD = 40  # Members of whom a quarter is drawn for a round; a fifth are liars.


class _Sent:
    """What the members of a round would send if all were honest.

    Attributes
    ----------
    step : Tensor
        ``[d]``: what all updates have in common.
    updates : Tensor
        ``[m, d]``: honest updates; the first rows are the liars'.
    length : float
        The median length of the updates.
    """

    def __init__(self, seed: int, server_round: int) -> None:
        generator = torch_generator("foreseen", seed, server_round)
        lengths = torch.randn(SIZE, generator=generator).abs() / math.sqrt(SIZE)
        is_positive = torch.rand(SIZE, generator=generator) < POSITIVE
        self.step = torch.where(is_positive, lengths, -lengths)
        noise = torch.randn(MEMBERS, SIZE, generator=generator) / math.sqrt(SIZE)
        self.updates = self.step + NOISE * noise
        self.length = float(self.updates.norm(dim=1).median())
        self.server_round = server_round

    def with_lies(self, lies: Tensor) -> RoundUpdates:
        """Return the round in which the liars send ``[k, d]``."""
        updates = torch.cat([lies, self.updates[LIARS:]])
        return round_of(updates, self.server_round)

    def lost(self, rule: DnC | SignGuard, lies: Tensor) -> float:
        """Return the part of the honest members' mean step that the rule loses by lies [k, d]."""
        sent = self.with_lies(lies)
        made = rule(sent).weights.to(sent.client_updates) @ sent.client_updates
        honest = self.updates[LIARS:].mean(dim=0)
        return 1 - float(made @ self.step) / float(honest @ self.step)

    def against_step(self, places: Tensor) -> Tensor:
        """Return updates ``[k, d]`` of the usual length that go against the step in some places.

        Elsewhere they are the liars' honest ones. ``places`` is ``[d]``, bool.
        """
        lies = self.updates[:LIARS].clone()
        lies[:, places] = 0
        left = (self.length**2 - lies.square().sum(dim=1)).clamp_min(0).sqrt()  # [k]
        direction = torch.where(places, self.step, 0.0)
        turned: Tensor = lies - left[:, None] * direction / direction.norm()
        return turned


def round_of(updates: Tensor, server_round: int) -> RoundUpdates:
    """Return a round with these updates ``[m, d]``, whose model is 0; rules draw by the seed."""
    m, d = updates.shape
    return RoundUpdates(
        server_round=server_round,
        client_ids=tuple(range(m)),
        num_examples=torch.ones(m, dtype=torch.float64),
        model=ModelVectors(torch.zeros(d), torch.zeros(0)),
        client_updates=updates,
        squared_norms=updates.double().square().sum(dim=1),
        buffer_updates=torch.zeros(m, 0),
        seed=SERVER_SEED,
    )


def _not_drawn(purpose: str, count: int, server_round: int) -> Tensor:
    """Return which coordinates a rule does not look at, ``[d]``."""
    generator = torch_generator(purpose, SERVER_SEED, server_round)
    places = torch.ones(SIZE, dtype=torch.bool)
    places[torch.randperm(SIZE, generator=generator)[:count]] = False
    return places


def dnc(seed: int, server_round: int, *, foreseen: bool) -> float:
    """Return the part of the step that DnC loses, if liars go against it where it does not look.

    If they do not know where that is, they go against the step everywhere.
    """
    sent = _Sent(seed, server_round)
    places = torch.ones(SIZE, dtype=torch.bool)
    if foreseen:
        places = _not_drawn("dnc", COORDINATES, server_round)
    return sent.lost(DnC(LIARS / MEMBERS), sent.against_step(places))


def sign_guard(seed: int, server_round: int, *, foreseen: bool) -> float:
    """Return the part of the step that SignGuard loses.

    Without foreseeing the coordinates, liars go against the step, and make the share of positive
    signs the usual one: where the step has little, they send next to nothing, of the rarer sign.
    """
    sent = _Sent(seed, server_round)
    rule = SignGuard()
    if foreseen:
        places = _not_drawn("sign-guard", round(rule.share * SIZE), server_round)
        return sent.lost(rule, sent.against_step(places))
    lie = -sent.step
    usual = float((sent.updates > 0).float().mean())
    missing = round((usual - float((lie > 0).float().mean())) * SIZE)
    smallest = torch.where(lie < 0, -lie, math.inf).argsort()[:missing]
    lie[smallest] = 1e-9
    lies = (sent.length * lie / lie.norm()).expand(LIARS, -1)
    return sent.lost(rule, lies)


def flame(seed: int, server_round: int, *, foreseen: bool) -> float:
    """Return the part of FLAME's noise that liars take away, who send a part of its opposite.

    With more than their own part of it, they are left out in every round.
    """
    sent = _Sent(seed, server_round)
    lies = sent.updates[:LIARS]
    if foreseen:
        generator = torch_generator("flame", SERVER_SEED, server_round)
        noise = Flame().noise * sent.length * torch.randn(SIZE, generator=generator)
        lies = lies - noise
    updates = sent.with_lies(lies)
    aggregation = Flame()(updates)
    added = aggregation.noise
    assert added is not None
    weights = aggregation.weights.to(updates.client_updates)
    by_lies = weights[:LIARS] @ (lies - sent.updates[:LIARS])
    return -float(by_lies @ added) / float(added @ added)


def bucketing(_seed: int, server_round: int, *, foreseen: bool) -> float:
    """Return the share of groups with a liar; liars who foresee the groups may leave some out."""

    def share(count: int) -> float:
        """Return the share if ``count`` liars reply, who come first."""
        mixed = Bucketing(2).before(round_of(torch.zeros(count, 1), server_round)).mixing
        assert mixed is not None
        liars = count - MEMBERS + LIARS
        return float((mixed[:, :liars].sum(dim=1) > 0).double().mean())

    if not foreseen:
        return share(MEMBERS)
    return max(share(count) for count in range(MEMBERS - LIARS + 1, MEMBERS + 1))


def clients(_seed: int, server_round: int, *, foreseen: bool) -> float:
    """Return the share of liars among the drawn; who foresee the draw choose who is online."""
    nodes = [ClientNode(place, place) for place in range(CROWD)]
    liars = nodes[::5]

    def share(online: Sequence[ClientNode]) -> float:
        generator = numpy_generator("sample-clients", SERVER_SEED, server_round)
        drawn = sample_clients(online, round(len(online) / 4), generator)
        return mean(node in liars for node in drawn)

    if not foreseen:
        return share(nodes)
    shares = []
    for present in product((False, True), repeat=len(liars)):
        away = [node for node, is_there in zip(liars, present, strict=True) if not is_there]
        shares.append(share([node for node in nodes if node not in away]))
    return max(shares)


def orders(_seed: int, server_round: int, *, foreseen: bool) -> float:
    """Return what liars gain who send one useful update under the best of four identities.

    It is the estimated Shapley value by 50 orders (25 and their reverses), over the exact value,
    less 1. Each useful update closes 30 % of what is left to learn.
    """
    generator = torch_generator("shapley", SERVER_SEED, server_round)
    half = random_permutations(25, MEMBERS, generator)
    permutations = torch.cat([half, half.flip(dims=[1])])
    num_useful = MEMBERS - LIARS + 1
    exact = (1 - 0.7**num_useful) / num_useful
    gains = []
    for liar in range(LIARS):
        is_useful = torch.ones(MEMBERS, dtype=torch.float64)
        is_useful[:LIARS] = 0
        is_useful[liar] = 1

        def learned(masks: Tensor, is_useful: Tensor = is_useful) -> Tensor:
            worths: Tensor = 1 - 0.7 ** (masks.double() @ is_useful)
            return worths

        value = float(marginal_contributions(learned, permutations)[:, liar].mean())
        gains.append(value / exact - 1)
    if foreseen:
        return max(gains)
    return gains[0]


FIGURES: dict[str, Callable[..., float]] = {
    "dnc": dnc,
    "sign-guard": sign_guard,
    "flame": flame,
    "bucketing": bucketing,
    "clients": clients,
    "orders": orders,
}
WORDS = {
    "dnc": "part of the step that `dnc` loses",
    "sign-guard": "part of the step that `sign-guard` loses",
    "flame": "part of the noise of `flame` that is gone",
    "bucketing": "share of groups with a liar",
    "clients": "share of liars among the drawn, where a fifth of all are liars",
    "orders": "gain in Shapley value by random orders",
}


def measure(cell: Row) -> list[Row]:
    """Return a row with the mean figure of the rounds, foreseen and not."""
    figure = FIGURES[cell["draw"]]
    row: dict[str, object] = {}
    for foreseen in (False, True):
        values = [
            figure(cell["seed"], number, foreseen=foreseen) for number in range(1, ROUNDS + 1)
        ]
        row["foreseen" if foreseen else "not foreseen"] = f"{mean(values):.4f}"
    return [row]


def table() -> ResultTable:
    """Return a table of the figures."""
    lines = []
    for row in read_rows(CSV):
        line = [WORDS[row["draw"]]]
        for column in ("not foreseen", "foreseen"):
            rounded = round(float(row[column]), 2) + 0.0  # Not "-0%".
            line.append(f"{rounded:.0%}")
        lines.append(line)
    heading = ["figure", "draws not foreseen", "draws foreseen"]
    return ResultTable("What liars gain by foreseeing draws", heading, lines, num_labels=1)


def main(again: Again = False) -> None:
    """Measure what is missing, and print the table."""
    cells: list[Row] = [{"draw": draw, "seed": 0} for draw in FIGURES]
    complete = fill(CSV, cells, measure, again=again)
    print(*table().to_markdown(), sep="\n")
    finish(complete)


if __name__ == "__main__":
    run_study(main)
