"""What clients remember of their rounds goes on with a run, or the run says that it does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from flwr.app import RecordDict

from client_app import app as client_app
from fedif_flower.attacks import ClientRound, Colluder, build_behaviour
from fedif_flower.attacks.registry import ATTACKS
from fedif_flower.client.reply import node_memory
from fedif_flower.local_methods.registry import LOCAL_METHODS
from fedif_flower.messages.polling_grid import ForwardingGrid
from fedif_flower.run.collusion import Agreement
from fedif_flower.runtime.local_grid import LocalGrid
from tests.run.resuming import CLIENTS, run, run_config

RIDERS = {"attack": "free-rider-step", "malicious_fraction": 0.5}
REMEMBERING = [
    RIDERS,
    {"attack": "none", "local_method": "moon"},
    {"attack": "none", "local_method": "scaffold", "strategy": "fedavg", "momentum": 0.0},
]


class Hidden(ForwardingGrid):
    """The way to nodes whose state the server does not see."""

    def send_and_receive(self, messages, *, timeout=None):
        return self.inner.send_and_receive(messages, timeout=timeout)


def model_of(run_dir):
    return torch.load(run_dir / "model.pt", weights_only=True)


@pytest.mark.parametrize("own", REMEMBERING, ids=lambda own: own.get("local_method", "riders"))
@pytest.mark.parametrize("same_grid", [False, True])
def test_a_run_goes_on_bit_for_bit_with_what_its_clients_remember(own, same_grid, tmp_path):
    """Killed in round 4, after the checkpoint of round 2; its nodes may be there yet, or new."""
    config = run_config(tmp_path / "whole", **own)
    whole = model_of(run(config))
    config = run_config(tmp_path / "killed", resume="auto", **own)
    grid = LocalGrid(client_app, CLIENTS)
    run(config, grid, kill_at=4)
    again = model_of(run(config, grid if same_grid else None))
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_a_new_run_on_nodes_of_an_earlier_one_begins_without_memory(tmp_path):
    grid = LocalGrid(client_app, CLIENTS)
    one, other = (run(run_config(tmp_path / name, **RIDERS), grid) for name in ("one", "other"))
    assert all(torch.equal(model_of(one)[k], v) for k, v in model_of(other).items())


@pytest.mark.parametrize("own", REMEMBERING, ids=lambda own: own.get("local_method", "riders"))
def test_where_memory_is_lost_the_resumed_run_names_what_remembers(own, tmp_path, caplog):
    key = "local-method" if "local_method" in own else "attack"
    name = own.get("local_method") or own["attack"]
    config = run_config(tmp_path, resume="auto", num_server_rounds=4, **own)
    run(config, Hidden(LocalGrid(client_app, CLIENTS)), kill_at=3)
    assert "the resumed run differs" not in caplog.text
    run(config, Hidden(LocalGrid(client_app, CLIENTS)))
    assert f"{key} = {name!r}: what clients keep of their rounds is lost" in caplog.text


def test_a_run_whose_clients_remember_nothing_resumes_without_a_word(tmp_path, caplog):
    config = run_config(tmp_path, resume="auto", num_server_rounds=4)
    run(config, Hidden(LocalGrid(client_app, CLIENTS)), kill_at=3)
    run(config, Hidden(LocalGrid(client_app, CLIENTS)))
    assert "the resumed run differs" not in caplog.text


def keeps_something(tmp_path, **own) -> bool:
    """Return whether a client's state holds memory after two rounds."""
    grid = LocalGrid(client_app, CLIENTS)
    usual = {"num_server_rounds": 2, "fraction_train": 1.0, "checkpoint_every": 0}
    run(run_config(tmp_path, **usual, **own), grid)
    return any("-memory." in key for context in grid.contexts.values() for key in context.state)


@pytest.mark.parametrize("name", LOCAL_METHODS.built_in)
def test_a_local_method_says_whether_it_remembers(name, tmp_path):
    own = {"attack": "none", "local_method": name, "momentum": 0.0}
    assert keeps_something(tmp_path, **own) is LOCAL_METHODS[name].remembers


@pytest.mark.parametrize("name", ATTACKS.built_in)
def test_an_attack_says_whether_it_remembers(name, tmp_path):
    acting = build_behaviour(run_config(tmp_path, attack=name), partition_id=0, seed=0)
    memory: dict[str, torch.Tensor] = {}
    generator = torch.Generator()
    acting.poison_update(ClientRound(torch.zeros(8), torch.ones(8), 1, generator, memory))
    assert bool(memory) is acting.remembers


class Remembering(Colluder):
    """Remembers what can be kept, and what cannot."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []
        self.rounds = {"first": 0}
        self.open = object()

    def collude(self, received, updates, generator):
        self.sent.append(updates.mean(dim=0))
        self.rounds["first"] = self.rounds["first"] or len(self.sent)
        return torch.stack(self.sent).sum(dim=0).expand_as(updates)


def test_accomplices_remember_lists_and_say_what_is_lost(monkeypatch, caplog):
    monkeypatch.setattr(
        "fedif_flower.run.collusion.build_behaviour", lambda *_, **__: Remembering()
    )
    config, point = SimpleNamespace(attack="my:Remembering", seed=0), torch.zeros(1)

    def sent(agreement: Agreement, server_round: int) -> float:
        updates = torch.full((2, 1), float(server_round))
        return float(agreement.collude(point, updates, server_round, 0)[0])

    first = Agreement(config)
    assert [sent(first, 1), sent(first, 2)] == [1.0, 3.0]
    assert "the resumed run differs" not in caplog.text
    second = Agreement(config)
    second.restore((), first.memory(2), 2)
    assert sent(second, 3) == 6.0
    assert "attack = 'my:Remembering': what accomplices remember as open is lost" in caplog.text


def test_a_nodes_memory_is_of_one_run():
    state = RecordDict()
    with node_memory(state, "attack", "one") as memory:
        memory["sent"] = torch.ones(2)
    with node_memory(state, "attack", "other") as memory:
        assert memory == {}
