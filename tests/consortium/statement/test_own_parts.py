"""One owner under several names is found by what its updates have of their own."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array

from client_app import app as client_app
from fedif_consortium.statement.account import settle
from fedif_consortium.statement.own_parts import (
    ALIKE,
    SIZE,
    OwnPart,
    OwnParts,
    likeness,
    members_alike,
    sketch,
)
from fedif_consortium.statement.records import read_run
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.seeding import torch_generator
from tests.consortium.statement import signed_runs as of
from tests.run.resuming import Killed, killed_at


def test_a_sketch_keeps_lengths_and_cosines():
    one, other = torch.randn(2, 50_001, generator=torch.Generator().manual_seed(0)).double()
    near = 0.98 * one + 0.2 * other
    found = sketch(torch.stack([one, other, near, torch.zeros_like(one)]), key=1)
    assert found.shape == (4, SIZE)
    units = torch.nn.functional.normalize(found, dim=1)
    # A cosine is told to about (1 - cosine ** 2) / 16.
    expected = torch.nn.functional.cosine_similarity(one, near, dim=0)
    assert abs(units[0] @ units[2] - expected) < 4 * (1 - expected**2) / 16
    assert abs(units[0] @ units[1]) < 4 / 16
    assert abs(found[0].norm() / one.norm() - 1) < 0.2
    assert not found[3].any()
    torch.testing.assert_close(sketch(3 * one[None], key=1)[0], 3 * found[0])


def of_rounds(rows):
    """Return a member's own part, of what each of its rounds has ``[T, k]``."""
    rows = np.asarray(rows, dtype=float)
    return OwnPart(len(rows), float((rows**2).sum()), rows.sum(axis=0).tolist())


def test_alike_are_those_above_the_bound_with_five_rounds():
    ada, bob, cyd = (1.0, 0.0, 0.1), (1.0, 0.1, 0.0), (0.0, 1.0, 0.0)
    parts = {1: of_rounds([ada] * 5), 2: of_rounds([bob] * 6), 3: of_rounds([cyd] * 9)}
    assert members_alike(parts) == {1, 2}
    assert members_alike({**parts, 1: of_rounds([ada] * 4)}) == frozenset()
    assert members_alike({**parts, 1: of_rounds([(0.0, 0.0, 0.0)] * 5)}) == frozenset()


def sent_in(round_updates: torch.Tensor) -> SimpleNamespace:
    """Return what a step has of a round's updates ``[m, d]``."""
    nodes = [ClientNode(i, i) for i in range(len(round_updates))]
    updates = SimpleNamespace(unseen=None, client_updates=round_updates)
    return SimpleNamespace(updates=updates, nodes=nodes)


def test_updates_of_nothing_make_nobody_alike(tmp_path):
    """All go the same way, each with noise of its own; two members send the model back."""
    parts = OwnParts(RunFolder(tmp_path))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        updates = torch.randn(10, 2000, generator=generator) + 3.0
        updates[:2] = 0.0
        parts.on_step(sent_in(updates))
    parts.on_step(sent_in(torch.zeros(10, 2000)))
    assert sorted(parts.sums) == list(range(2, 10))
    own_parts = {
        client_id: OwnPart(rounds, squares, sums.tolist())
        for client_id, (rounds, squares, sums) in parts.sums.items()
    }
    assert {part.rounds for part in own_parts.values()} == {20}
    assert members_alike(own_parts) == frozenset()


def test_likeness_is_a_cosine_without_what_differs_from_round_to_round():
    # By hand: what stays is (3, 0) and (3, 0); what differs, (0, 2) and (0, -2), or nothing.
    noisy = of_rounds([(3.0, 2.0), (3.0, 2.0)])
    plain = of_rounds([(3.0, 0.0), (3.0, 0.0)])
    # Of (6, 4) the square is 52, that of the rounds 26: 52 is what stays of it, by two rounds.
    found = likeness([noisy, plain])
    assert found[0, 1] == pytest.approx(36 / np.sqrt(52 * 36))
    # Turned round, it is told as noise: (6, 0), of 36 less 26 at least, or a quarter.
    noisy = of_rounds([(3.0, 2.0), (3.0, -2.0)])
    assert likeness([noisy, plain])[0, 1] == pytest.approx(36 / np.sqrt(2 * 10 * 36))
    only_noise = of_rounds([(0.5, 2.0), (0.5, -2.0)])
    least = 2 * 1.0 / 4
    assert likeness([only_noise, plain])[0, 1] == pytest.approx(6 / np.sqrt(least * 36))


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_noise_as_long_as_the_update_hides_nobody(noise):
    generator = np.random.default_rng(0)
    rounds, own, other = 30, generator.normal(size=64), generator.normal(size=64)
    other = 0.8 * own + 0.6 * other  # As members with like data have it.

    def sent(part):
        rows = part + noise * generator.normal(size=(rounds, 64)) * np.linalg.norm(part) / 8
        return of_rounds(rows)

    found = likeness([sent(own), sent(own), sent(other)])
    assert found[0, 1] > ALIKE
    assert max(found[0, 2], found[1, 2]) < 0.9


def same_data(tmp_path, hidden=0.4, **overrides):
    """Return what runs with partition 3 sending partition 1's updates, hidden by noise."""

    def client(message, context):
        is_copy = context.node_id == 1003
        if is_copy:
            context.node_config["partition-id"] = 1
        reply = client_app(message, context)
        if is_copy and "arrays" in reply.content:
            generator = np.random.default_rng(message.content["config"]["server-round"])
            sent, own = reply.content["arrays"], message.content["arrays"]
            for name, array in sent.items():
                after, before = array.numpy(), own[name].numpy()
                noise = generator.normal(size=after.shape).astype(after.dtype)
                scale = hidden * np.linalg.norm(after - before) / np.linalg.norm(noise)
                sent[name] = Array(after + scale * noise)
        return reply

    more = {"num_clients": 5, "attribution": "simpson", "num_server_rounds": 6, **overrides}
    return partial(of.run, LocalGrid(client, 5), tmp_path, **more)


@pytest.mark.parametrize("hidden", [0.4, 0.6])
def test_two_nodes_with_the_same_data_are_to_be_looked_at(tmp_path, hidden):
    found = settle(read_run(same_data(tmp_path, hidden, num_server_rounds=12)())).members
    assert {m.client_id for m in found if "same own part" in m.verdict.reason} == {1001, 1003}


def test_who_knows_the_runs_seed_cannot_hide_the_same_data(tmp_path):
    """With the signs of one sum known, a change of 5 % of the update's length would hide it."""
    size, members, seed = 50_000, 8, 0
    generator = torch.Generator().manual_seed(1)
    own = torch.randn(members, size, generator=generator)
    own[1] = own[0]
    guessed = 2.0 * torch.randint(0, 2, (size,), generator=torch_generator("own-parts", seed)) - 1.0
    parts = OwnParts(RunFolder(tmp_path))
    for _ in range(8):
        updates = own + 0.5 * torch.randn(members, size, generator=generator)
        for member, bucket in ((0, 3), (1, 7)):
            change = torch.zeros(size)
            change[bucket::SIZE] = guessed[bucket::SIZE]
            updates[member] += 0.05 * updates[member].norm() * change / change.norm()
        parts.on_step(sent_in(updates))
    own_parts = {
        client_id: OwnPart(rounds, squares, sums.tolist())
        for client_id, (rounds, squares, sums) in parts.sums.items()
    }
    assert members_alike(own_parts) == {0, 1}


def test_a_run_that_goes_on_has_the_same_sums(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: bits)  # For runs that are to be equal.
    whole = same_data(tmp_path / "whole")() / "own_parts.csv"
    run = same_data(tmp_path / "cut", checkpoint_every=2)
    with pytest.raises(Killed):
        run(on_row=killed_at(5))
    monkeypatch.setattr("secrets.randbits", lambda bits: bits + 1)  # The checkpoint has the key.
    again = run(resume="auto") / "own_parts.csv"
    assert again.read_text() == whole.read_text()
