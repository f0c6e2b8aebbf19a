from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array
from torch import nn

from client_app import app as client_app
from fedif_consortium.parts import run_parts
from fedif_consortium.statement.account import settle
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.records import read_run
from fedif_consortium.statement.replay import replay
from fedif_consortium.statement.verify import verify
from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.messages.arrays import pack_array
from fedif_flower.run import held_out
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder, files_of_rounds
from fedif_flower.run.rows import read_rows
from fedif_flower.run.secret_validation import commitment_of, salt_of
from fedif_flower.runtime.local_grid import FIRST_NODE_ID, LocalGrid
from fedif_flower.server.loop import ScreenedStrategy
from tests.consortium.statement import signed_runs as of
from tests.consortium.statement.kept_runs import ROUNDS, Steep, config, run, small_task
from tests.server.hostile import reply_of


@pytest.fixture(scope="module")
def free_riding(tmp_path_factory) -> Path:
    """A run in which a member returns the model and one sends noise, its updates kept."""
    riders = {1: {"attack": "free-rider"}, 3: {"attack": "random-update"}}
    settings = config(tmp_path_factory.mktemp("runs"), fraction_train=1.0)
    return run(settings, node_configs=riders)


@pytest.fixture
def copy(free_riding, tmp_path) -> Path:
    return shutil.copytree(free_riding, tmp_path / "run")


def test_the_attribution_is_recomputed_bit_for_bit(free_riding):
    found = replay(free_riding)
    assert (found.rounds, found.contributions, found.weighed) == (ROUNDS, 5 * ROUNDS, ROUNDS)


def test_a_changed_update_or_record_is_found_by_its_round_and_client(copy):
    path = files_of_rounds(copy / "updates")[2]
    content = torch.load(path, weights_only=True)
    changed = content["updates"].clone()
    changed[3] *= 1.001
    torch.save(content | {"updates": changed}, path)
    with pytest.raises(StatementError, match=r"round 2, client 1003: .*\(relative difference"):
        replay(copy)
    torch.save(content, path)
    table = RunFolder(copy).attribution
    place = {"round": "3", "client_id": "1000"}
    (row,) = (row for row in table.read() if place.items() <= row.items())
    nearly = repr(float(row["contribution"]) * (1 + 2**-52))
    of.rewrite(table, of.altered(place, contribution=nearly))
    with pytest.raises(StatementError, match="round 3, client 1000"):
        replay(copy)


def test_the_model_of_a_statement_is_the_one_that_the_rounds_led_to(copy):
    path = copy / "model.pt"
    content = torch.load(path, weights_only=True)
    name = next(iter(content))
    torch.save({**content, name: content[name] + 0.01}, path)
    with pytest.raises(StatementError, match=r"^model\.pt is not the model to which"):
        replay(copy)
    path.write_bytes(b"no model")
    with pytest.raises(StatementError, match=r"^model\.pt holds no model of this run"):
        replay(copy)
    path.unlink()
    assert replay(copy).not_compared == ("model.pt: it is not here",)


def test_an_operator_makes_up_no_coefficients(copy):
    """Tables follow from them, and the remainder would take up what the model did not gain."""
    for path in files_of_rounds(copy / "updates").values():
        content = torch.load(path, weights_only=True)
        applied = content["applied"].clone()
        applied[applied.argmax()] *= 1.25
        torch.save(content | {"applied": applied}, path)
    words = "round 1: the updates and coefficients in updates/ do not lead from the model before"
    with pytest.raises(StatementError, match=words):
        replay(copy)


@pytest.mark.parametrize("name", ["weights", "examples"])
def test_bounds_of_credit_are_by_the_weights_and_examples_of_the_table(copy, name):
    path = files_of_rounds(copy / "updates")[2]
    content = torch.load(path, weights_only=True)
    changed = content[name].clone()
    changed[3] += 1e-6
    torch.save(content | {name: changed}, path)
    with pytest.raises(StatementError, match=r"round 2: client 1003 .* and others in clients.csv"):
        replay(copy)


def test_bounds_of_credit_are_by_the_lengths_that_the_steps_used(copy):
    """An operator says that a member's update was shortened to half, so that more is credited."""
    path = files_of_rounds(copy / "updates")[2]
    content = torch.load(path, weights_only=True)
    shortening = content["shortening"].clone()
    shortening[3] /= 2
    torch.save(content | {"shortening": shortening}, path)
    with pytest.raises(StatementError, match="round 2: the update of client 1003 was multiplied"):
        replay(copy)


def test_no_operator_says_that_a_rule_shortened_updates_which_it_does_not(copy):
    """Half of the length for twice the weight: a member of long updates would be credited more."""
    path = files_of_rounds(copy / "updates")[2]
    content = torch.load(path, weights_only=True)
    rescaling = torch.ones_like(content["weights"])
    rescaling[3] = 0.5
    torch.save(content | {"rescaling": rescaling}, path)
    with pytest.raises(StatementError, match=r"round 2: .* another length, which 'fedif'"):
        replay(copy)


@pytest.mark.parametrize(
    "settings",
    [
        # Rounds take other weights than the strategy's own.
        {"attack": "scaling", "update_clipping": 1.0},
        {"strategy": "fltrust", "update_clipping": 0.5},
        {"strategy": "sign-guard", "neighbour_mixing": True, "update_clipping": 0.5},
    ],
)
def test_a_run_with_bounds_is_recomputed(tmp_path, settings):
    found = replay(run(config(tmp_path, **settings)))
    assert (found.weighed, found.not_compared) == (ROUNDS, ())


def test_a_run_goes_on_from_the_models_that_its_rounds_led_to(tmp_path, monkeypatch):
    """An operator moves the model between rounds: what it brings is no member's contribution."""
    ask_members = ScreenedStrategy.ask_members

    def move_and_ask(strategy, server_round, arrays, config, grid):
        if server_round == 2:
            vectors = strategy.model.vectors
            arrays = strategy.model.advance(replace(vectors, params=vectors.params * 1.1))
        return ask_members(strategy, server_round, arrays, config, grid)

    monkeypatch.setattr(ScreenedStrategy, "ask_members", move_and_ask)
    run_dir = run(config(tmp_path, num_server_rounds=2))
    words = "round 2: the model in updates/ is not the one that the run had come to before it"
    with pytest.raises(StatementError, match=words):
        replay(run_dir)


EVERY_COLUMN = [
    *((name, "attribution") for name in ("partition_id", "coefficient", "credited", "length")),
    *((name, "attribution") for name in ("weight", "borrowed", "opposed", "contribution_block_7")),
    *((name, "attributed_rounds") for name in ("loss_before", "loss_after", "decrease")),
    *((name, "attributed_rounds") for name in ("attributed", "remainder")),
    *((name, "attributed_rounds") for name in ("slope", "smoothness", "bound_held")),
]


@pytest.mark.parametrize(("column", "table"), EVERY_COLUMN)
def test_every_column_is_recomputed_and_the_totals_of_rounds(copy, column, table):
    """The operator changes it from the start, so that no head says otherwise."""
    own = getattr(RunFolder(copy), table)
    place = {"round": "4"} | ({"client_id": "1002"} if table == "attribution" else {})
    (row,) = (row for row in own.read() if place.items() <= row.items())
    value = "7" if column == "partition_id" else repr(float(row[column]) + 30)
    of.rewrite(own, of.altered(place, **{column: value}))
    where = ", client 1002" if table == "attribution" else ""
    with pytest.raises(StatementError, match=f"round 4{where}: {column} = {value} is recorded"):
        replay(copy)


DESCENT = ("slope", "smoothness", "bound_held")


def test_columns_that_came_later_are_not_compared_and_named(copy):
    """A run from before them can be replayed: no pay is of these."""
    of.rewrite(RunFolder(copy).attributed_rounds, of.without_columns(*DESCENT))
    found = replay(copy)
    assert (found.rounds, found.not_recorded) == (ROUNDS, DESCENT)


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("attributed_rounds", DESCENT[:1]),
        ("attribution", ("contribution_block_7",)),
    ],
)
def test_an_operator_leaves_out_no_other_column(copy, table, columns):
    of.rewrite(getattr(RunFolder(copy), table), of.without_columns(*columns))
    with pytest.raises(StatementError, match=f"{columns[0]} = nothing is recorded"):
        replay(copy)


def test_the_columns_that_are_recomputed_are_those_of_the_tables(copy):
    folder = RunFolder(copy)
    split = [f"contribution_block_{k}" for k in range(20)]
    known = {name for name, _ in EVERY_COLUMN} | {"round", "client_id", "contribution", *split}
    for table in (folder.attribution, folder.attributed_rounds):
        assert set(table.read()[0]) <= known


def test_a_replay_is_of_the_models_that_members_received(tmp_path):
    """Else the operator chooses the models at which updates are worth what it likes."""
    of_grid = of.nodes(of.write_keys(tmp_path / "keys"))
    run_dir = of.run(of_grid, tmp_path, num_server_rounds=2, **{"updates.keep": True})
    assert replay(run_dir).rounds == 2
    path = files_of_rounds(run_dir / "updates")[2]
    content = torch.load(path, weights_only=True)
    content["before"]["params"] = content["before"]["params"] + 1e-6
    torch.save(content, path)
    with pytest.raises(StatementError, match="round 2: the model in updates/ is not the one that"):
        replay(run_dir)


def test_a_run_of_others_imports_what_the_user_allows(copy, tmp_path, monkeypatch):
    config = RunFolder(copy).config
    config.write(config.read() | {"strategy": "planted:Strategy"})
    (tmp_path / "planted.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"imports 'planted'.*--import-from planted"):
        replay(copy)
    assert "planted" not in sys.modules
    with pytest.raises(ConfigError, match=r"has no .*'Strategy'"):
        replay(copy, import_from=["planted"])


def test_another_validation_set_is_named(copy):
    provenance = RunFolder(copy).provenance
    provenance.write(provenance.read() | {"validation_sha256": "00"})
    with pytest.raises(StatementError, match="validation set is not the one"):
        replay(copy)


def test_an_operator_makes_up_no_share_of_wrong_labels(tmp_path, monkeypatch):
    """The whole run is corrected for it, so that nothing in its tables contradicts it."""
    examined = held_out.examine

    def made_up(*arguments):
        return replace(examined(*arguments), noise=0.6, low=0.5, high=0.6, lower_quartile=0.6)

    with monkeypatch.context() as patched:
        patched.setattr(held_out, "examine", made_up)
        run_dir = run(config(tmp_path, num_server_rounds=2))
    words = "held_out.corrected_noise = 0.6 is recorded, the held-out data give 0.0"
    with pytest.raises(StatementError, match=words):
        replay(run_dir)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise": 0.1}, r"held_out.noise = 0.1 is recorded, the held-out data give 0.0"),
        ({"shared": 7}, "held_out.shared = 7 is recorded, the held-out data give 0"),
        ({"rare": {}}, r"held_out.rare = \{\} is recorded, the held-out data give \{.*\}"),
        ({"by_class": 0.5}, "held_out.by_class = 0.5 is recorded, the held-out data give null"),
        ({"corrected_noise": 0.3}, "held_out.corrected_noise = 0.3 is recorded"),
        ({"way": {"model": "own", "trainings": 7, "epochs": 1}}, "cannot be examined like this"),
        ({"way": 1}, "held_out cannot be read"),
        (None, "held_out is missing"),
    ],
)
def test_what_was_found_in_held_out_data_is_found_again(copy, changes, words):
    provenance = RunFolder(copy).provenance
    record = provenance.read()
    assert replay(copy).examined == ("held_out",)
    if changes is None:
        del record["held_out"]
    else:
        record["held_out"] |= changes
    provenance.write(record)
    with pytest.raises(StatementError, match=words):
        replay(copy)


def test_what_a_run_had_no_time_to_find_is_named(copy):
    provenance = RunFolder(copy).provenance
    record = provenance.read()
    figures = ("noise", "low", "high", "lower_quartile", "accuracy", "way")
    unknown = dict.fromkeys(figures) | {"why_none": "it would take more than 1 s"}
    provenance.write(record | {"held_out": record["held_out"] | unknown})
    words = "held_out: the run has no estimate of the share of wrong labels"
    replayed = replay(copy)
    assert (replayed.examined, replayed.not_compared) == ((), (words,))


def test_another_strategy_rule_and_server_optimizer_are_recomputed_too(tmp_path):
    overrides = {"strategy": "fedavg", "server_optimizer": "fedavgm", "attribution": "gauss2"}
    run_dir = run(config(tmp_path, num_server_rounds=3, **overrides, **{"credit.per-class": True}))
    assert replay(run_dir).rounds == 3


def test_a_round_that_failed_kept_nothing_and_is_passed_over(tmp_path):
    class Fickle(LocalGrid):
        rounds = 0

        def push_messages(self, messages):
            sent = list(messages)
            self.rounds += any(message.metadata.message_type == "train" for message in sent)
            self._silent = set(self.node_ids) if self.rounds == 2 else set()
            return super().push_messages(sent)

    settings = config(tmp_path, num_server_rounds=4)
    run_dir = run(settings, Fickle(client_app, 5))
    assert list(files_of_rounds(run_dir / "updates")) == [1, 3, 4]
    assert replay(run_dir).rounds == 4


@pytest.mark.parametrize("last", [3, 4])
def test_a_step_that_was_taken_back_is_recomputed_as_such(tmp_path, last):
    def failing(message, context):
        number = message.content.config_records.get("config", {}).get("server-round", 0)
        # Two of five fail in a round between the step and the one that takes it back: too few.
        node = context.node_id - FIRST_NODE_ID
        if number == last or (2 < number < last and node < 2):
            raise RuntimeError("not on this model")
        return client_app(message, context)

    settings = config(tmp_path, num_server_rounds=last + 2, fraction_train=1.0, min_valid_replies=4)
    run_dir = run(settings, LocalGrid(failing, 5))
    records = read_run(run_dir)
    undone = {p.client_id: p.contribution for p in records.member_rounds if p.round == last}
    assert {p.client_id: -p.contribution for p in records.member_rounds if p.round == 2} == undone
    kept = files_of_rounds(run_dir / "updates")
    assert list(kept) == [1, 2, last + 1, last + 2]
    assert replay(run_dir).rounds == last + 2


def lose_the_model(reply):
    """Change a reply so that the steep model has no finite loss any more."""
    for name, array in reply.content["arrays"].items():
        reply.content["arrays"][name] = Array(np.float32(1e4) * array.numpy())


def run_of_lost_models(tmp_path, client, task, rounds):
    """Return the folder of so many rounds of FedAvg in which all five take part."""
    overrides = {"task": "this-app:steep", "strategy": "fedavg", "fraction_train": 1.0}
    settings = config(tmp_path, num_server_rounds=rounds, **overrides)
    return run_federation(LocalGrid(client, 5), settings, task=task, parts=run_parts())


def test_a_step_to_no_finite_loss_is_none_that_was_taken_back_at_once(tmp_path):
    """Round 2 leads there, and is attributed to nobody; round 3, in which all fail, leads back."""
    task = small_task("steep", lambda: Steep(4, 3), torch.float32)
    honest = task_app(task)

    def spoiling(message, context):
        reply = honest(message, context)
        number = message.content.config_records.get("config", {}).get("server-round", 0)
        if number == 2 and context.node_id == FIRST_NODE_ID:
            lose_the_model(reply)
        return reply

    run_dir = run_of_lost_models(tmp_path, spoiling, task, 4)
    records = read_run(run_dir)
    assert {part.round for part in records.member_rounds} == {1, 4}
    first, second, third, fourth = records.rounds
    assert (second.loss_before, third.loss_after) == (first.loss_after, fourth.loss_before)
    assert math.isnan(second.loss_after)
    assert math.isnan(third.loss_before)
    assert third.loss_after == first.loss_after
    assert replay(run_dir, task).contributions == 10


def test_a_step_between_two_lost_models_is_none_that_was_taken_back(tmp_path):
    """Round 2 loses the model, round 3 leads to another lost one, and round 4 brings it back."""
    task = small_task("steep", lambda: Steep(4, 3), torch.float32)
    honest = task_app(task)
    factors = {3: np.float32(0.999), 4: np.float32(1e-4)}

    def steering(message, context):
        number = message.content.config_records.get("config", {}).get("server-round", 0)
        if number in factors:  # All send the same, whatever they would learn.
            arrays = message.content["arrays"].items()
            sent = {name: pack_array(factors[number] * array.numpy()) for name, array in arrays}
            return reply_of(message, sent, {"num-examples": 20})
        reply = honest(message, context)
        if number == 2 and context.node_id == FIRST_NODE_ID:
            lose_the_model(reply)
        return reply

    run_dir = run_of_lost_models(tmp_path, steering, task, 5)
    records = read_run(run_dir)
    third = records.rounds[2]
    assert math.isnan(third.loss_before)
    assert math.isnan(third.loss_after)
    assert math.isfinite(records.rounds[3].loss_after)
    assert {part.round for part in records.member_rounds} == {1, 5}
    replayed = replay(run_dir, task)
    assert (replayed.contributions, replayed.weighed) == (10, 5)


def test_the_run_of_a_model_in_float16_is_recomputed(tmp_path):
    task = small_task("half", lambda: nn.Linear(4, 3).half(), torch.float16)
    settings = config(tmp_path, num_server_rounds=2, task="this-app:half")
    grid = LocalGrid(task_app(task), 5)
    run_dir = run_federation(grid, settings, task=task, parts=run_parts())
    assert replay(run_dir, task).contributions == 8


def test_a_task_may_begin_with_another_model_each_time(tmp_path):
    """Nothing was contributed before the first round, whatever it began with."""

    def model() -> nn.Module:
        linear = nn.Linear(4, 3)
        nn.init.constant_(linear.weight, float(np.random.default_rng().normal()))
        return linear

    task = small_task("drawn", model, torch.float32)
    settings = config(tmp_path, num_server_rounds=2, task="this-app:drawn")
    grid = LocalGrid(task_app(task), 5)
    run_dir = run_federation(grid, settings, task=task, parts=run_parts())
    assert replay(run_dir, task).weighed == 2


def test_a_run_paid_on_secret_data_opens_its_salt(tmp_path, monkeypatch, key):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run_dir = run(config(tmp_path, num_server_rounds=2, **{"credit.secret-validation": True}))
    committed = json.loads((run_dir / "provenance.json").read_text())
    # Before the statement the salt is nowhere in the run's folder.
    salt = salt_of(committed["paying_nonce"])
    assert commitment_of(salt) == committed["paying_commitment"]
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if salt.encode() in path.read_bytes()]
    # The losses of the attribution are not those of the data that weigh.
    weighing = [row["validation_loss"] for row in read_rows(run_dir / "rounds.csv")]
    paying = [row["loss_before"] for row in read_rows(run_dir / "attribution_rounds.csv")]
    assert not set(weighing) & set(paying)
    _require_no_salt_elsewhere(run_dir, tmp_path / "elsewhere", monkeypatch)
    folder = make_statement(run_dir, key)
    verify(run_dir)
    assert (folder / "validation-salt.txt").read_text().strip() == salt
    shutil.rmtree(tmp_path / "config")  # Others have no secret: the salt that was opened is enough.
    replayed = replay(run_dir)
    assert replayed.rounds == 2
    assert replayed.examined == ("held_out", "paying_held_out")
    (folder / "validation-salt.txt").write_text("00\n")
    with pytest.raises(StatementError, match="salt is not the one that the run committed to"):
        replay(run_dir)


def _require_no_salt_elsewhere(run_dir: Path, config_home: Path, monkeypatch) -> None:
    """Another host has not the server's secret: it says so, and makes none."""
    words = "this host has not the secret with which the run's server drew the data that pay"
    with monkeypatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(config_home))
        with pytest.raises(StatementError, match=words):
            replay(run_dir)
        assert not config_home.exists()
        salt_of("another run's")
        with pytest.raises(StatementError, match=words):
            read_run(run_dir).salt()


def test_free_riders_of_a_real_run_get_nothing(free_riding):
    found = settle(read_run(free_riding), 1000_00)
    members = {member.partition_id: member for member in found.members}
    assert found.attributed + found.remainder == pytest.approx(found.decrease)
    # Who returns the model has a weight score, but contributed exactly 0; noise is nearly nothing.
    assert (members[1].contribution, members[1].cents) == (0.0, 0)
    assert abs(members[3].contribution) < 0.05 * found.decrease
    assert {members[1].verdict.level, members[3].verdict.level}.isdisjoint(["accept"])
    assert all(members[i].contribution > 0.05 * found.decrease for i in (0, 2, 4))
    assert sum(member.cents for member in found.members) > 900_00  # Bounds leave it to the honest.


def test_a_setting_that_cannot_be_read_is_the_file_s(copy):
    settings = RunFolder(copy).config
    settings.write({**settings.read(), "batch-size": 0})
    with pytest.raises(ConfigError, match=r"config\.json: batch-size = 0; allowed"):
        replay(copy)


def test_updates_that_have_gone_are_not_called_updates_that_were_not_kept(copy):
    files_of_rounds(copy / "updates")[1].unlink()
    with pytest.raises(ConfigError, match="the updates of round 1 are not here: they have gone"):
        replay(copy)
    settings = RunFolder(copy).config
    settings.write({**settings.read(), "updates.keep": False})
    with pytest.raises(ConfigError, match=r"of round 1 were not kept: run it with updates\.keep"):
        replay(copy)
