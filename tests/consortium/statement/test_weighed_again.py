from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from client_app import app as client_app
from fedif_consortium.parts import run_parts
from fedif_consortium.statement.replay import replay
from fedif_flower import FedIF
from fedif_flower.aggregators import Flame
from fedif_flower.client.app import task_app
from fedif_flower.errors import StatementError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder, files_of_rounds
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.loop import ScreenedStrategy
from tests.consortium.statement import kept_runs
from tests.consortium.statement.kept_runs import Steep, run, small_task


def config(output_dir: Path, **overrides) -> RunConfig:
    """Return settings of a few rounds of five members, whose held-out set is not examined."""
    own = {"num_server_rounds": 2, "fraction_train": 1.0, "validation.vet": False}
    return kept_runs.config(output_dir, **{**own, "validation.noise": "off", **overrides})


@pytest.mark.parametrize(
    ("settings", "figure"),
    [
        ({"strategy": "fltrust"}, "rescaling"),
        ({"strategy": "sign-guard", "neighbour_mixing": True}, "rescaling"),
        ({"strategy": "fedavg", "neighbour_mixing": True, "update_clipping": 2.0}, "shortening"),
    ],
)
def test_no_operator_makes_up_lengths_of_mixed_updates_or_of_a_rule(
    tmp_path, monkeypatch, settings, figure
):
    """Half of its length is said of a member's updates: it would be credited for more of it."""
    aggregate = ScreenedStrategy.aggregate

    def aggregate_and_lie(strategy, updates):
        vectors, aggregation = aggregate(strategy, updates)
        lengths = getattr(aggregation, figure).clone()
        lengths[1] /= 2
        return vectors, replace(aggregation, **{figure: lengths})

    of_run = config(tmp_path, **settings)
    assert replay(run(of_run)).weighed == 2
    with monkeypatch.context() as patched:
        patched.setattr(ScreenedStrategy, "aggregate", aggregate_and_lie)
        run_dir = run(of_run.replace(run_name="other"))
    with pytest.raises(StatementError, match=f"round 1: client 1001 has a {figure} of .* by "):
        replay(run_dir)


def test_an_operator_who_weighs_a_friend_more_is_found(tmp_path, monkeypatch):
    """All that the run wrote follows from its weights, and nothing contradicts them."""
    weigh = FedIF.weigh

    def weigh_for_a_friend(strategy, updates):
        aggregation = weigh(strategy, updates)
        weights = aggregation.weights.clone()
        weights[updates.client_ids.index(1002)] += 0.2
        return replace(aggregation, weights=weights / weights.sum())

    settings = config(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(FedIF, "weigh", weigh_for_a_friend)
        run_dir = run(settings)
    with pytest.raises(StatementError, match=r"round 1: client 1002 has a weight of .* by 'fedif'"):
        replay(run_dir)


def test_noise_of_a_rule_is_the_one_that_it_adds(tmp_path, monkeypatch):
    """It would lead wherever the operator likes."""
    settings = config(tmp_path, strategy="flame")
    honest = run(settings)
    assert replay(honest).weighed == 2
    call = Flame.__call__

    def call_with_other_noise(rule, updates):
        aggregation = call(rule, updates)
        return replace(aggregation, noise=-aggregation.noise)

    with monkeypatch.context() as patched:
        patched.setattr(Flame, "__call__", call_with_other_noise)
        run_dir = run(settings.replace(run_name="other"))
    with pytest.raises(StatementError, match="round 1: the noise in the kept updates is not the"):
        replay(run_dir)


class Deployed(LocalGrid):
    """As real nodes are: no simulation."""

    reliable = False


def test_the_weights_of_a_deployed_run_follow_from_the_servers_own_seed(tmp_path):
    """Whoever replays it needs the secret that the run committed to before its first round."""
    settings = config(tmp_path, strategy="flame", start_without="unfit")
    folder = RunFolder(run(settings, Deployed(client_app, 5)))
    assert replay(folder.path).weighed == 2
    provenance = folder.provenance.read()
    commitment = provenance.pop("server_seed_commitment")
    folder.provenance.write(provenance)
    with pytest.raises(StatementError, match="round 1: the noise in the kept updates is not the"):
        replay(folder.path)  # By the run's seed, which members know.
    folder.provenance.write({**provenance, "server_seed_commitment": commitment})
    folder.server_seed.write({"secret": "00" * 32})
    words = "server_seed.json does not have the secret that the run committed to"
    with pytest.raises(StatementError, match=words):
        replay(folder.path)
    folder.server_seed.path.unlink()
    with pytest.raises(StatementError, match=words):
        replay(folder.path)


def sending_back_in(number: int):
    """Return a client app whose members change nothing in a round."""

    def answer(message, context):
        received = message.content["arrays"]
        reply = client_app(message, context)
        config = message.content.config_records.get("config", {})
        if config.get("server-round") == number and message.metadata.message_type == "train":
            reply.content["arrays"] = ArrayRecord(received.to_torch_state_dict())
        return reply

    return answer


@pytest.mark.parametrize(("strategy", "weighed"), [("fedif", 1), ("multikrum", 3)])
def test_what_a_strategy_learned_from_updates_that_were_not_kept_is_named(
    tmp_path, strategy, weighed
):
    """In round 2 the model stays as it was. A rule without a memory can be asked again later."""
    settings = config(tmp_path, num_server_rounds=4, strategy=strategy)
    run_dir = run(settings, LocalGrid(sending_back_in(2), 5))
    assert list(files_of_rounds(run_dir / "updates")) == [1, 3, 4]
    found = replay(run_dir)
    assert found.weighed == weighed
    words = (
        "weights after round 2: the strategy also learned from the updates of round 2, which made "
        "no step, and such updates are not kept"
    )
    assert found.not_compared == ((words,) if strategy == "fedif" else ())
    assert (found.examined, found.not_examined) == ((), ("held_out",))  # Without validation.vet.


def failing_in(number: int):
    """Return a client app of which one member raises an error in a round."""

    def answer(message, context):
        config = message.content.config_records.get("config", {})
        if config.get("server-round") == number and context.node_id == 1001:
            raise RuntimeError("no memory left")
        return client_app(message, context)

    return answer


def test_a_round_that_failed_before_it_was_weighed_taught_the_strategy_nothing(tmp_path):
    """Else an operator could have one round fail, and weigh as it likes in all later ones."""
    settings = config(tmp_path, num_server_rounds=4, strategy="fedif", min_valid_replies=5)
    run_dir = run(settings, LocalGrid(failing_in(2), 5))
    assert list(files_of_rounds(run_dir / "updates")) == [1, 3, 4]
    found = replay(run_dir)
    assert (found.weighed, found.not_compared) == (3, ())


def test_weights_of_what_clients_report_are_named(tmp_path):
    settings = config(
        tmp_path,
        strategy="fedavg",
        local_method="fedif_studies.local_methods.fednoro:FedNoRo",
    )
    found = replay(run(settings), import_from=["fedif_studies"])
    assert found.weighed == 0
    (words,) = found.not_compared
    assert "changes them by what clients report, which the run does not keep" in words


def test_where_a_bound_leads_depends_on_the_momentum_so_far(tmp_path):
    """It tries where the server's optimizer would go on to, and takes other weights."""
    task = small_task("steep", lambda: Steep(4, 3), torch.float32)
    overrides = {"task": "this-app:steep", "server_optimizer": "fedavgm", "num_server_rounds": 8}
    settings = config(tmp_path, learning_rate=26.0, local_epochs=3, **overrides)
    run_dir = run_federation(LocalGrid(task_app(task), 5), settings, task=task, parts=run_parts())
    assert replay(run_dir, task).weighed == 8


def test_shapley_values_of_models_with_buffers_lead_to_the_same_weights(tmp_path):
    """A coalition's model has the mean of its members' statistics, which are kept, too."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    task = small_task("normed", model, torch.float32)
    overrides = {"task": "this-app:normed", "strategy": "afedsv"}
    settings = config(tmp_path, num_server_rounds=3, **overrides)
    grid = LocalGrid(task_app(task), 5)
    run_dir = run_federation(grid, settings, task=task, parts=run_parts())
    assert replay(run_dir, task).weighed == 3
