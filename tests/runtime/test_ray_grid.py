from __future__ import annotations

import pickle
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from threading import Barrier, Event
from unittest.mock import MagicMock

import pytest
from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.client_app import ClientAppException
from flwr.server.superlink.fleet.vce.backend import Backend

from client_app import app as client_app
from fedif_flower.errors import ConfigError, FedIFError, StorageError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import hold_directory
from fedif_flower.run.results import load
from fedif_flower.runtime import ray_grid, simulation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.ray_grid import RayGrid
from fedif_flower.runtime.simulation import simulate


class Threads(Backend):
    """Workers in this process; what each does is the test's."""

    num_workers = 2

    def __init__(self, work) -> None:
        self._work = work

    build = is_worker_idle = terminate = None

    def process_message(self, message, context):
        context = deepcopy(context)
        return self._work(message, context), context


def messages(*node_ids: int) -> list[Message]:
    return [Message(RecordDict(), node_id, MessageType.TRAIN) for node_id in node_ids]


def answer(message, _) -> Message:
    return Message(RecordDict(), reply_to=message)


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (pickle.loads(pickle.dumps(ClientAppException("no data"))), 2, "no data"),  # As Ray does.
        (OSError("actor died"), 0, "actor died"),
    ],
)
def test_what_a_client_raises_becomes_its_error_reply(error, code, reason):
    def work(message, context) -> Message:
        if message.metadata.dst_node_id == 1000:
            raise error
        return answer(message, context)

    grid = RayGrid(client_app, 2, Threads(work))
    replies = {r.metadata.src_node_id: r for r in grid.send_and_receive(messages(1000, 1001))}
    assert replies[1000].error.code == code
    assert replies[1000].error.reason == reason
    assert replies[1001].has_content()
    grid.close()


def test_who_has_not_begun_when_time_is_over_is_not_asked():
    go, asked = Event(), []

    def work(message, context) -> Message:
        asked.append(message.metadata.dst_node_id)
        assert go.wait(10)
        return answer(message, context)

    grid = RayGrid(client_app, 6, Threads(work))
    assert list(grid.send_and_receive(messages(*range(1000, 1006)), timeout=1.0)) == []
    go.set()
    assert len(list(grid.send_and_receive(messages(1005)))) == 1
    assert sorted(asked) == [1000, 1001, 1005]
    grid.close()


def test_closing_interrupts_those_at_work_and_waits_for_them():
    begun, interrupted = Event(), Event()

    def work(message, context) -> Message:
        begun.set()
        assert interrupted.wait(10)
        return answer(message, context)

    grid = RayGrid(client_app, 3, Threads(work))
    grid.push_messages(messages(1000, 1001, 1002))
    assert begun.wait(10)
    grid.close(interrupted.set)
    assert interrupted.is_set()


def test_two_runs_at_a_time_on_one_node_both_keep_what_they_left_there():
    """Actors get copies of a node's state: the one that returns last must not undo the other."""
    both = Barrier(2)

    def work(message, context) -> Message:
        (run,) = message.content
        both.wait(10)
        context.state[run] = MetricRecord({"value": 1})
        return Message(RecordDict(), reply_to=message)

    grid = RayGrid(client_app, 1, Threads(work))
    sent = [
        Message(RecordDict({run: MetricRecord({"value": 0})}), 1000, MessageType.TRAIN)
        for run in ("a", "b")
    ]
    assert len(list(grid.send_and_receive(sent))) == 2
    assert set(grid.contexts[1000].state) == {"a", "b"}
    grid.close()


def test_what_a_client_deletes_from_its_state_stays_deleted():
    """It notes something, deletes it, and notes it again."""
    seen = []

    def work(message, context) -> Message:
        seen.append("note" in context.state)
        if seen[-1]:
            del context.state["note"]
        else:
            context.state["note"] = MetricRecord({"value": 1})
        return Message(RecordDict(), reply_to=message)

    grid = RayGrid(client_app, 1, Threads(work))
    for _ in range(3):
        list(grid.send_and_receive(messages(1000)))
    assert seen == [False, True, False]
    grid.close()


@pytest.mark.parametrize("error", [RuntimeError("Timed out waiting\nfor file"), Exception("Timed")])
@pytest.mark.parametrize("failing", ["Ray", "actors"])
def test_a_ray_that_does_not_start_says_what_it_needs(monkeypatch, failing, error):
    new_backend = MagicMock()
    if failing == "Ray":
        new_backend.side_effect = error
    else:
        new_backend.return_value.build.side_effect = error
    monkeypatch.setattr(ray_grid, "_new_backend", new_backend)
    reason = "Ray did not start: Timed.*it needs room in TMPDIR"
    with pytest.raises(FedIFError, match=reason), ray_grid.ray_grid(client_app, 2):
        pass
    if failing == "actors":
        new_backend.return_value.terminate.assert_called_once()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dirichlet-alpha": 1e-320}, r"dirichlet-alpha = 1e-320: .* 100 clients"),
        ({"pace.late-rounds": 2}, r"^pace.late-rounds = 2; allowed: 0 in a simulation"),
        (
            {"pace.rounds": "buffered", "pace.buffer-size": 2},
            r"^pace.rounds = 'buffered'; allowed: 'synchronous' in a simulation",
        ),
    ],
)
def test_what_a_simulation_cannot_do_is_refused_before_ray_starts(tmp_path, settings, words):
    config = RunConfig.from_run_config({**settings, "output-dir": str(tmp_path)})
    with pytest.raises(ConfigError, match=words):
        simulate(config, client_app, cpus_per_client=0)  # Which Ray's start would refuse.
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused_before_ray_starts(tmp_path):
    no_folder = tmp_path / "runs"
    no_folder.write_text("a file")
    config = RunConfig.from_run_config({"num-clients": 2, "output-dir": str(no_folder)})
    with pytest.raises(ConfigError, match=r"output-dir = .*: cannot write"):
        simulate(config, client_app, cpus_per_client=0)  # Which Ray's start would refuse.


def test_an_automatic_name_that_another_run_takes_while_ray_starts_gets_a_number(
    tmp_path, monkeypatch
):
    own = {"num-clients": 2, "dataset": "digits", "output-dir": str(tmp_path)}
    config = RunConfig.from_run_config(own)

    @contextmanager
    def slow_start(*_, **__):
        with hold_directory(config.run_dir):
            yield None

    def folder_of_run(*_, loaded, **__) -> Path:
        return loaded.config.run_dir

    monkeypatch.setattr(simulation, "ray_grid", slow_start)
    monkeypatch.setattr(simulation, "run_federation", folder_of_run)
    assert simulate(config, client_app).name == f"{config.run_name}-2"


def test_clients_of_a_simulation_train_the_model_that_auto_stands_for(tmp_path, monkeypatch):
    own = {"num-clients": 2, "fraction-train": 1, "num-server-rounds": 1, "local-epochs": 1}
    own |= {"validation.vet": False, "device": "cpu", "output-dir": str(tmp_path)}

    @contextmanager
    def without_ray(app, num_nodes, **_):
        yield LocalGrid(app, num_nodes)

    monkeypatch.setattr(simulation, "ray_grid", without_ray)
    run = load(simulate(RunConfig.from_run_config(own), client_app))
    assert run.config["model"] == "mlp"
    assert run.summary["accepted"] == 2


def test_a_folder_that_another_run_holds_is_refused_before_ray_starts(tmp_path):
    own = {"num-clients": 2, "output-dir": str(tmp_path), "run-name": "held"}
    config = RunConfig.from_run_config(own)
    with hold_directory(tmp_path / "held"), pytest.raises(StorageError, match="is in use by"):
        simulate(config, client_app, cpus_per_client=0)
