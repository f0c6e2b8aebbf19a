"""``RunWriter``: the records of a federation that has no run config."""

from __future__ import annotations

import logging
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from typer.testing import CliRunner

from fedif_flower import (
    CreditBounds,
    FedAvg,
    FedIF,
    PathAttribution,
    RunWriter,
    ShowRounds,
    Validation,
    load,
)
from fedif_flower.attribution.gain import gain_of
from fedif_flower.cli import cli
from fedif_flower.errors import ConfigError, StorageError, TrainingFailedError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.known_settings import known_settings
from fedif_flower.run.provenance import data_hash, tensors_hash
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import Callback, StopTraining
from fedif_flower.strategies import Pace, ScreenedStrategy, Setup
from fedif_studies.commands import cli as studies
from fedif_studies.lab.comparison import compare
from tests.strategies.lines import BASE, Movers, Threshold, point, threshold_validation
from tests.strategies.lines import validation as bowl_of_two


def written(
    directory, *more, num_rounds=3, attribution=None, kind=FedIF, clients=None, **own
) -> ScreenedStrategy:
    """Run a federation of three with a writer, in an app of one's own."""
    beside = [attribution] if attribution else []
    callbacks = [RunWriter(directory, **own), *beside, *more]
    validation = attribution.validation if attribution else threshold_validation()
    held_out = [validation] if issubclass(kind, FedIF) else []
    setup = Setup(device="cpu")
    strategy = kind(*held_out, fraction_evaluate=0.0, callbacks=callbacks, setup=setup)
    grid = LocalGrid(clients or Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=num_rounds)
    return strategy


def test_rounds_clients_and_a_report(tmp_path, pictures):
    folder = tmp_path / "new" / "folder"
    held_out, marked = threshold_validation(), lambda node: node.client_id == 1001
    written(folder, validation=held_out, title="Three members", is_malicious=marked)
    rounds, clients = (read_rows(folder / f"{name}.csv") for name in ("rounds", "clients"))
    assert [row["round"] for row in rounds] == ["0", "1", "2", "3"]
    assert float(rounds[0]["validation_accuracy"]) < float(rounds[3]["validation_accuracy"])
    assert rounds[1]["test_accuracy"] == ""
    assert [row["client_id"] for row in clients] == ["1000", "1001", "1002"] * 3
    assert [row["malicious"] for row in clients] == ["0", "1", "0"] * 3
    report = (folder / "report.md").read_text()
    assert report.startswith("# Three members\n")
    assert "(malicious) |" in report
    for picture in ("accuracy.png", "weight-scores.png"):
        assert (folder / picture).stat().st_size > 1000
        assert f"({picture})" in report


def test_a_report_says_where_an_error_stood_in_for_an_attack(tmp_path):
    honest = Movers([[1.0], [-1.0], [2.0]])

    def client(message, context):
        if context.node_config["partition-id"] == 1:
            raise ValueError("it fails")
        return honest(message, context)

    for name, attacker, num_rounds, words in (
        ("once", 1001, 1, "Malicious clients answered once by an error, which clients.csv names"),
        ("twice", 1001, 2, "Malicious clients answered 2 times by an error"),
        ("honest", 1000, 1, ""),  # Another client's error leaves the attack in the figures.
    ):
        folder = tmp_path / name
        marked = partial(has_id, attacker)
        written(folder, clients=client, num_rounds=num_rounds, is_malicious=marked)
        report = " ".join((folder / "report.md").read_text().split())
        assert words in report
        assert ("by an error" in report) == bool(words)


def has_id(client_id: int, node: ClientNode) -> bool:
    return node.client_id == client_id


def test_two_writers_at_once_in_a_directory_are_refused(tmp_path):
    level = logging.getLogger("flwr").level
    with pytest.raises(StorageError, match=r"in use by process .* a directory of its own"):
        written(tmp_path, ShowRounds(), RunWriter(tmp_path))
    # Those that had begun were told of the end.
    assert logging.getLogger("flwr").level == level
    assert "Unfinished" in (tmp_path / "report.md").read_text()
    written(tmp_path, num_rounds=2)
    rounds = read_rows(tmp_path / "rounds.csv")
    assert [row["round"] for row in rounds] == ["0", "1", "2"]


def test_a_run_that_nobody_has_any_more_holds_no_directory(tmp_path):
    """A loop of one's own never said that it ended: a notebook's cell is run once more."""

    def begin() -> ScreenedStrategy:
        strategy = FedAvg(callbacks=[RunWriter(tmp_path)], fraction_evaluate=0.0)
        grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
        strategy.configure_train(1, model_arrays(Threshold()), ConfigRecord(), grid)
        return strategy

    kept = begin()
    with pytest.raises(StorageError, match=r"call its strategy's end\(\)"):
        begin()
    kept.end()
    begin()
    begin()


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    directory = tmp_path / "file" / "run"
    with pytest.raises(ConfigError, match=f"^directory = '{directory}': cannot write: "):
        written(directory)


def test_beside_an_attribution_it_writes_contributions(tmp_path):
    attribution = PathAttribution(threshold_validation(), bounds=CreditBounds(weight=0.0))
    strategy = written(tmp_path, attribution=attribution)
    told = {member.label: member.contribution for member in load(tmp_path).members}
    assert set(told) == {"node 1000", "node 1001", "node 1002"} == set(strategy.weight_scores)
    assert told == pytest.approx(attribution.contributions)
    report = " ".join((tmp_path / "report.md").read_text().split())
    assert report.count("1002") == 1
    assert re.search(r"contributions add up to 0\.\d+ (more|less) than the validation loss", report)


class Moved(FedAvg):
    """Moves the model by (0, 1) after its first round, as a wrapper does that adds noise."""

    def start(self, grid, arrays, num_rounds):
        for number in range(1, num_rounds + 1):
            messages = self.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, _ = self.aggregate_train(number, grid.send_and_receive(messages))
            if number == 1:
                moved = arrays["weight"].numpy() + np.array([[0.0, 1.0]], dtype=np.float32)
                arrays = ArrayRecord({"weight": Array(moved)})
        self.end()


def test_the_fall_of_the_loss_is_that_between_the_ends_of_a_run(tmp_path):
    """From 10 to 6.5 by a step, to 5 by nobody, to 2.5 by a step: 7.5, of which 6 by steps."""
    attribution = PathAttribution(bowl_of_two(), "trapezoid")
    setup = Setup(device="cpu", trainable_keys=attribution.validation.parameter_names)
    callbacks = [RunWriter(tmp_path), attribution]
    strategy = Moved(fraction_evaluate=0.0, callbacks=callbacks, setup=setup)
    strategy.start(LocalGrid(Movers([[1.0, 0.0], [1.0, 0.0]]), 2), model_arrays(point()), 2)
    gain = RunFolder(tmp_path).summary.read()["attribution"]
    assert gain == pytest.approx({"decrease": 7.5, "attributed": 6.0, "remainder": 1.5})
    report = (tmp_path / "report.md").read_text()
    assert "| 7.500 = 6.000 contributed by members + 1.500 remainder |" in report


def a_line(before: float, after: float, attributed: float) -> dict[str, float]:
    return {"loss_before": before, "loss_after": after, "attributed": attributed}


def test_a_round_without_a_finite_loss_hides_no_fall():
    """From 3 to 1, and up to 2.5 by way of a loss that is not finite: 0.5 in all."""
    lines = [a_line(3.0, 1.0, 2.0), a_line(1.0, math.inf, 0.0), a_line(math.inf, 2.5, 0.0)]
    assert gain_of(lines) == {"decrease": 0.5, "attributed": 2.0, "remainder": -1.5}


def test_a_run_that_ends_without_a_finite_loss_has_no_fall():
    lines = [a_line(3.0, 1.0, 2.0), a_line(1.0, math.nan, 0.0)]
    assert gain_of(lines) == {"decrease": None, "attributed": 2.0, "remainder": None}


class Failing(Callback):
    """Ends a run by an error in its second round."""

    def on_round(self, report):
        if report.round == 2:
            raise RuntimeError("no more")


def test_a_run_that_an_error_ended_has_a_report_that_says_so(tmp_path):
    attribution = PathAttribution(threshold_validation())
    with pytest.raises(RuntimeError, match="no more"):
        written(tmp_path, Failing(), attribution=attribution)
    report = (tmp_path / "report.md").read_text()
    told = "Unfinished: an error ended the run after round 1. Every request was answered."
    assert told in " ".join(report.split())
    assert not (tmp_path / "summary.json").exists()
    assert repr(load(tmp_path)).endswith("1 round, unfinished)")


def fedif(*arguments: object) -> str:
    return CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False).stdout


def test_a_run_that_came_to_its_end_is_called_the_same_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    strategy = written(tmp_path, title="Three members", validation=threshold_validation())
    report, shown = (tmp_path / "report.md").read_text(), fedif("show", tmp_path)
    assert "\nComplete: Every request was answered.\n" in report
    assert "\nComplete: Every request was answered.\n" in shown
    assert "Three members, 3 rounds, complete)" in shown
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert torch.equal(model["weight"], strategy.model.vectors.params)
    summary = RunFolder(tmp_path).summary.read()
    assert (summary["rounds"], summary["machine"]["device"]) == (3, "cpu")


def test_a_round_that_fails_is_the_same_word_in_report_and_command(tmp_path):
    class Away(Movers):
        def train(self, message, partition_id):
            if partition_id == 1:
                raise RuntimeError("no data")
            return super().train(message, partition_id)

    written(tmp_path, clients=Away([[1.0], [-1.0], [2.0]]))
    run = load(tmp_path)
    assert run.state == "incomplete"
    assert "\nIncomplete: 1 of 3 members" in (tmp_path / "report.md").read_text()
    assert repr(run).endswith("3 rounds, incomplete)")


def test_a_run_that_begins_while_an_error_is_handled_comes_to_its_end(tmp_path):
    try:
        raise RuntimeError("another grid")
    except RuntimeError:
        written(tmp_path, attribution=PathAttribution(threshold_validation()))
    assert load(tmp_path).state == "complete"
    assert len(RunFolder(tmp_path).attributed_rounds.read()) == 3


def test_a_strategy_that_is_started_again_goes_on_in_its_files(tmp_path):
    attribution = PathAttribution(threshold_validation())
    strategy = written(tmp_path, num_rounds=2, attribution=attribution)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, strategy.model.record, num_rounds=2)
    folder = RunFolder(tmp_path)
    assert [row["round"] for row in folder.rounds.read()] == ["0", "1", "2", "3", "4"]
    assert len(folder.clients.read()) == 4 * 3
    assert [row["round"] for row in folder.attributed_rounds.read()] == ["1", "2", "3", "4"]
    assert len(folder.attribution.read()) == 4 * 3
    assert load(tmp_path).state == "complete"


def test_lines_of_earlier_rounds_stay_as_they_were_written(tmp_path):
    """Members of an own app have the partition -1, and one has a negative influence."""
    strategy = written(tmp_path, num_rounds=1)
    tables = [tmp_path / name for name in ("rounds.csv", "clients.csv", "attendance.csv")]
    before = [path.read_text() for path in tables]
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, strategy.model.record, num_rounds=1)
    for path, text in zip(tables, before, strict=True):
        assert path.read_text().startswith(text), path.name
    scores = [line["score"] for line in load(tmp_path).lines("clients")]
    assert min(scores) < 0 < max(scores)


def test_a_strategy_that_an_error_ended_goes_on_with_each_round_once(tmp_path):
    failing, writer = Failing(), RunWriter(tmp_path)
    strategy = FedIF(threshold_validation(), callbacks=[writer, failing], **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(grid, model_arrays(Threshold()), num_rounds=3)
    assert len(RunFolder(tmp_path).clients.read()) == 2 * 3  # Of a round that is not complete, too.
    assert load(tmp_path).completeness.to_record()["asked"] == 3  # It is not counted.
    strategy.callbacks.remove(failing)
    strategy.start(grid, strategy.model.record, num_rounds=2)
    folder = RunFolder(tmp_path)
    assert [row["round"] for row in folder.rounds.read()] == ["0", "1", "2", "3"]
    assert [row["round"] for row in folder.clients.read()] == [*"111222333"]
    assert load(tmp_path).state == "complete"


class Leaves(Callback):
    """Takes the last member off line after a round."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid

    def on_metrics(self, server_round, metrics):
        if server_round == 1:
            self.grid.node_ids = [1000, 1001]


def test_who_left_in_a_round_that_is_done_again_is_told_again(tmp_path):
    """It is off line from round 2 on, of which an error ended the first attempt."""
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    failing = Failing()
    callbacks = [RunWriter(tmp_path), Leaves(grid), failing]
    strategy = FedIF(threshold_validation(), callbacks=callbacks, min_available_nodes=2, **BASE)
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(grid, model_arrays(Threshold()), num_rounds=4)
    strategy.callbacks.remove(failing)
    strategy.start(grid, strategy.model.record, num_rounds=3)
    rows = RunFolder(tmp_path).attendance.read()
    told = [(row["round"], row["client_id"], row["presence"]) for row in rows]
    came = [("1", client_id, "there") for client_id in ("1000", "1001", "1002")]
    assert told == [*came, ("2", "1002", "offline")]
    assert load(tmp_path).completeness.headline.startswith("Incomplete: 1 of 3 members")


class Stops(Callback):
    """Ends a run once it is told of the metrics of its second round."""

    def on_metrics(self, server_round, metrics):
        if server_round == 2:
            raise StopTraining("enough")


def test_the_model_with_which_a_callback_ends_a_run_is_evaluated(tmp_path):
    held_out = threshold_validation()
    strategy = written(tmp_path, Stops(), num_rounds=9, every=5, validation=held_out)
    [first, second, last] = RunFolder(tmp_path).rounds.read()
    assert (first["validation_loss"] != "", second["validation_loss"]) == (True, "")
    assert (last["round"], last["accepted"], last["status"]) == ("2", "3", "advanced")
    loss = float(held_out.measure(strategy.model.vectors.params)["loss"])
    assert float(last["validation_loss"]) == pytest.approx(loss)
    assert RunFolder(tmp_path).summary.read()["last_evaluated_round"] == 2


class Later(Callback):
    """Ten seconds pass in each round, and a hundred before a run begins."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def on_round(self, report):
        self.clock[0] += 10.0


def test_seconds_are_those_of_the_run_and_not_of_its_writer(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("fedif_flower.run.writer.time.perf_counter", lambda: clock[0])
    writer = RunWriter(tmp_path)
    grid = LocalGrid(Movers([[1.0], [-1.0]]), 2)

    def seconds_of(strategy: ScreenedStrategy) -> float:
        clock[0] += 100.0
        strategy.start(grid, model_arrays(Threshold()), num_rounds=2)
        return RunFolder(tmp_path).summary.read()["seconds"]

    for _ in range(2):
        strategy = FedAvg(callbacks=[writer, Later(clock)], **BASE)
        assert seconds_of(strategy) == 20.0
    assert seconds_of(strategy) == 140.0  # It goes on, and two more rounds follow.


def test_a_loop_of_another_s_that_a_callback_stops_ends_in_good_order(tmp_path):
    class Loop(FedAvg):
        def start(self, grid, arrays, num_rounds):
            for number in range(1, num_rounds + 1):
                messages = self.configure_train(number, arrays, ConfigRecord(), grid)
                arrays, _ = self.aggregate_train(number, grid.send_and_receive(messages))
            self.end()

    written(tmp_path, Stops(), kind=Loop, every=5, validation=threshold_validation())
    assert load(tmp_path).state == "complete"
    summary = RunFolder(tmp_path).summary.read()
    assert (summary["rounds"], summary["last_evaluated_round"]) == (2, 2)
    assert (tmp_path / "model.pt").is_file()


def named(grid, node_ids) -> list[ClientNode]:
    return [ClientNode(-1, node_id, name=f"hospital-{node_id}") for node_id in node_ids]


class FailingFirst(Callback):
    """Ends a run by an error in its first round."""

    def on_round(self, report):
        raise RuntimeError("no more")


@pytest.mark.parametrize("is_same_strategy", [True, False])
def test_files_that_begin_anew_have_names_and_attendance(tmp_path, is_same_strategy):
    """After an error in round 1, or with another strategy that has the same writer."""
    writer = RunWriter(tmp_path)
    grid = LocalGrid(Movers([[1.0], [-1.0]]), 2)
    setup = Setup(device="cpu", identify=named)

    def strategy_with(*more) -> ScreenedStrategy:
        return FedAvg(fraction_evaluate=0.0, callbacks=[writer, *more], setup=setup)

    failing = FailingFirst()
    strategy = strategy_with(failing)
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(grid, model_arrays(Threshold()), num_rounds=1)
    strategy.callbacks.remove(failing)
    if not is_same_strategy:
        strategy = strategy_with()
    strategy.start(grid, model_arrays(Threshold()), num_rounds=1)
    assert [member.label for member in load(tmp_path).members] == ["hospital-1000", "hospital-1001"]
    rows = RunFolder(tmp_path).attendance.read()
    assert [(row["round"], row["client_id"]) for row in rows] == [("1", "1000"), ("1", "1001")]


@pytest.mark.parametrize("attribution_first", [False, True])
def test_a_round_that_an_error_ended_is_paid_once_when_it_is_done_again(
    tmp_path, attribution_first
):
    failing, attribution = Failing(), PathAttribution(threshold_validation())
    callbacks = [RunWriter(tmp_path), attribution, failing]
    if attribution_first:
        callbacks = [attribution, RunWriter(tmp_path), failing]
    strategy = FedIF(attribution.validation, callbacks=callbacks, **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(grid, model_arrays(Threshold()), num_rounds=3)
    strategy.callbacks.remove(failing)
    strategy.start(grid, strategy.model.record, num_rounds=2)
    folder = RunFolder(tmp_path)
    assert [row["round"] for row in folder.attribution.read()] == [*"111222333"]
    first, second, third = folder.attributed_rounds.read()
    # The model went back to that of round 1.
    assert second["loss_before"] == first["loss_after"]
    assert third["loss_before"] == second["loss_after"]
    assert [record.round for record in strategy.history.rounds] == [1, 2, 3]
    assert load(tmp_path).state == "complete"


@pytest.mark.parametrize("ends_well", [True, False])
def test_rounds_after_a_writer_was_replaced_are_in_the_new_one_s_files_alone(tmp_path, ends_well):
    attribution = PathAttribution(threshold_validation())
    writer = RunWriter(tmp_path / "a")
    callbacks = [writer, attribution]
    if not ends_well:
        callbacks.append(Failing())
    strategy = FedIF(attribution.validation, callbacks=callbacks, **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    if ends_well:
        strategy.start(grid, model_arrays(Threshold()), num_rounds=2)
    else:
        with pytest.raises(RuntimeError, match="no more"):
            strategy.start(grid, model_arrays(Threshold()), num_rounds=3)
    strategy.callbacks[:] = [RunWriter(tmp_path / "b"), attribution]
    strategy.start(grid, strategy.model.record, num_rounds=4 - strategy.completed_rounds)

    def attributed_in(name: str) -> list[str]:
        return [row["round"] for row in RunFolder(tmp_path / name).attributed_rounds.read()]

    assert attributed_in("a") == ["1", "2"]
    assert attributed_in("b") == ["1", "2", "3", "4"]


class Pausing(FedIF):
    """Draws nobody in its second round."""

    def select(self, nodes, server_round):
        if server_round == 2:
            return []
        return super().select(nodes, server_round)


def test_a_round_that_asks_nobody_leaves_model_and_loss_as_they_are(tmp_path):
    attribution = PathAttribution(threshold_validation())
    strategy = written(tmp_path, attribution=attribution, kind=Pausing)
    folder = RunFolder(tmp_path)
    told = [(row["round"], row["status"], row["reason"]) for row in folder.rounds.read()]
    assert told[1:] == [
        ("1", "advanced", ""),
        ("2", "kept", "nobody was asked"),
        ("3", "advanced", ""),
    ]
    assert folder.summary.read()["kept_rounds"] == 1
    first, second, third = folder.attributed_rounds.read()
    assert second["loss_before"] == second["loss_after"] == first["loss_after"]
    assert third["loss_before"] == second["loss_after"] != third["loss_after"]
    assert [row["round"] for row in folder.attribution.read()] == [*"111333"]
    # A run that is resumed takes over all three rounds.
    resumed = PathAttribution(attribution.validation)
    resumed.load_state_dict(attribution.state_dict(3), attribution.lines(0, 3), 3)
    assert resumed.rounds == attribution.rounds
    assert strategy.completed_rounds == 3


def test_bounds_learn_once_from_a_round_that_is_done_again():
    failing = Failing()
    attribution = PathAttribution(threshold_validation(), bounds=CreditBounds())
    strategy = FedIF(attribution.validation, callbacks=[attribution, failing], **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(grid, model_arrays(Threshold()), num_rounds=3)
    strategy.callbacks.remove(failing)
    strategy.start(grid, strategy.model.record, num_rounds=2)
    assert attribution.bounds.state_dict()["clients"]["rounds"].tolist() == [3.0] * 3


class FailingMetrics(Callback):
    """Ends a run by an error when it is told of the metrics of its second round."""

    def on_metrics(self, server_round, metrics):
        if server_round == 2:
            raise RuntimeError("no more")


@pytest.mark.parametrize("more_rounds", [0, 1])
def test_a_round_whose_metrics_another_callback_cannot_bear_is_written(tmp_path, more_rounds):
    """It stands before the writer, which once began anew with the rounds that were left."""
    attribution = PathAttribution(threshold_validation())
    failing = FailingMetrics()
    callbacks = [failing, attribution, RunWriter(tmp_path)]
    strategy = FedIF(attribution.validation, callbacks=callbacks, **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(grid, model_arrays(Threshold()), num_rounds=3)
    assert strategy.completed_rounds == 2
    strategy.callbacks.remove(failing)
    strategy.start(grid, strategy.model.record, num_rounds=more_rounds)
    folder = RunFolder(tmp_path)
    rounds = list(map(str, range(3 + more_rounds)))
    assert [row["round"] for row in folder.rounds.read()] == rounds
    assert [row["round"] for row in folder.attributed_rounds.read()] == rounds[1:]
    assert load(tmp_path).state == "complete"


def test_contributions_to_rounds_before_the_writer_came_are_drawn(tmp_path):
    attribution = PathAttribution(threshold_validation())
    strategy = FedIF(attribution.validation, callbacks=[attribution], **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=2)
    strategy.callbacks.append(RunWriter(tmp_path))
    strategy.start(grid, strategy.model.record, num_rounds=0)
    assert "![contributions over rounds](attribution.png)" in (tmp_path / "report.md").read_text()


class FailingEnd(Callback):
    def on_end(self):
        raise RuntimeError("the tracker is gone")


def test_a_run_whose_end_another_callback_cannot_bear_is_written(tmp_path):
    callbacks = [FailingEnd(), RunWriter(tmp_path)]
    strategy = FedIF(threshold_validation(), callbacks=callbacks, **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    with pytest.raises(RuntimeError, match="the tracker is gone"):
        strategy.start(grid, model_arrays(Threshold()), num_rounds=1)
    assert load(tmp_path).state == "complete"


class Down(Movers):
    """All but the first member fail while they are down."""

    is_down = True

    def train(self, message, partition_id):
        if self.is_down and partition_id > 0:
            raise OSError("no data here")
        return super().train(message, partition_id)


def test_a_strategy_whose_members_failed_goes_on_after_the_round_that_was_too_much(tmp_path):
    """Round 3 ends the run, but its step was made: losses lead on to each other from there."""
    attribution = PathAttribution(bowl_of_two(), "trapezoid")
    setup = Setup(device="cpu", trainable_keys=attribution.validation.parameter_names)
    callbacks = [RunWriter(tmp_path), attribution]
    strategy = FedAvg(fraction_evaluate=0.0, callbacks=callbacks, setup=setup)
    members = Down([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    grid = LocalGrid(members, 3)
    with pytest.raises(TrainingFailedError, match="most members fail: 2 of 3"):
        strategy.start(grid, model_arrays(point()), num_rounds=9)
    members.is_down = False
    strategy.start(grid, strategy.model.record, num_rounds=1)
    folder = RunFolder(tmp_path)
    assert [row["round"] for row in folder.rounds.read()] == ["0", "1", "2", "3", "4"]
    # (x - 4)^2 / 2 + 2 at x = 0, 1, 2, 3, 4.
    losses = [float(row["loss_after"]) for row in folder.attributed_rounds.read()]
    assert losses == [6.5, 4.0, 2.5, 2.0]
    assert folder.is_complete()


@pytest.mark.parametrize("table", ["epoch,loss\n1,0.3\n", "epoch,loss\n"], ids=["lines", "header"])
def test_a_table_of_another_program_is_neither_read_nor_replaced(tmp_path, table):
    """Nor is any other file beside it that is called like one of a run's."""
    for name in ("rounds.csv", "model.pt"):
        (tmp_path / name).write_text(table)
    with pytest.raises(ConfigError, match=r"rounds\.csv is no table of rounds: it has no column"):
        written(tmp_path)
    for name in ("rounds.csv", "model.pt"):
        assert (tmp_path / name).read_text() == table


def test_files_that_are_called_like_a_run_s_are_put_aside(tmp_path, caplog):
    """A model that was trained before, and a list of names; there is no rounds.csv."""
    for name in ("model.pt", "names.csv", "notes.txt"):
        (tmp_path / name).write_text("mine\n")
    written(tmp_path)
    for name in ("model.pt", "names.csv"):
        assert (tmp_path / "attempt-1" / name).read_text() == "mine\n"
    assert (tmp_path / "notes.txt").read_text() == "mine\n"
    words = "no run wrote model.pt, names.csv, though they are named like a run's results: moved to"
    assert f"{words} {tmp_path / 'attempt-1'}" in caplog.text
    assert load(tmp_path).state == "complete"


def test_what_an_own_app_s_objects_tell_is_known(tmp_path):
    bounds = CreditBounds(length=1.5, borrowed=0.0)
    attribution = PathAttribution(threshold_validation(), "trapezoid", bounds=bounds)
    written(tmp_path, attribution=attribution)
    folder = RunFolder(tmp_path)
    assert not folder.config.path.exists()
    assert folder.settings() == {
        "strategy": "FedIF",
        "stages": "[Clip(multiple=2.0), LossBound(tolerance=0.1)]",
        "pace.late-rounds": 0,
        "attribution": "trapezoid",
        "credit.length": 1.5,
        "credit.borrowed": 0.0,
        "credit.weight": 2.0,
        "credit.secret-validation": False,
    }
    provenance = folder.provenance.read()
    assert provenance["settings_sha256"] == ""
    inputs, targets = torch.tensor([[1.0], [1 / 2], [1 / 3], [1 / 4]]), torch.ones(4).long()
    assert provenance["validation_sha256"] == tensors_hash([inputs, targets])


def test_for_how_long_late_replies_count_is_known():
    patient = FedAvg(setup=Setup(pace=Pace(late_rounds=4)))
    assert known_settings(patient, None)["pace.late-rounds"] == 4


def test_data_that_pay_and_never_weigh_are_told_from_those_that_do():
    same, other = (
        threshold_validation(),
        Validation(Threshold(), torch.tensor([[1.0]]), torch.ones(1).long(), device="cpu"),
    )
    strategy = FedIF(threshold_validation())
    key = "credit.secret-validation"
    assert not known_settings(strategy, PathAttribution(same))[key]
    assert known_settings(strategy, PathAttribution(other))[key]
    # Nothing weighs by held-out data here, and yet members may know those that pay.
    assert not known_settings(FedAvg(), PathAttribution(other))[key]


def test_data_without_tensors_have_no_hash():
    assert data_hash([]) == ""
    assert len(data_hash([torch.zeros(1)])) == 64


def test_own_runs_are_compared_by_what_is_known_of_them(tmp_path):
    held_out = threshold_validation()
    for name, kind in (("weighed", FedIF), ("plain", FedAvg)):
        both = {"validation": held_out, "test": held_out}
        written(tmp_path / name, kind=kind, **both)
    folders = [tmp_path / "weighed", tmp_path / "plain"]
    table = compare([load(folder) for folder in folders])
    lines = [dict(zip(table.heading, line, strict=True)) for line in table.lines]
    assert [(line["run"], line["strategy"]) for line in lines] == [
        ("weighed", "FedIF"),
        ("plain", "FedAvg"),
    ]
    assert lines[0]["bounds"].startswith("[Clip")
    assert lines[1]["bounds"] == "[]"
    assert not {"seed", "stages"} & set(table.heading)
    words = ["compare", *map(str, folders), "--output-dir", str(tmp_path / "out")]
    told = CliRunner().invoke(studies, words)
    assert told.exit_code == 0, told.output
    assert "| plain | FedAvg |" in (tmp_path / "out" / "table.md").read_text()


def test_a_run_without_figures_is_not_called_incomplete(tmp_path):
    written(tmp_path)
    with pytest.raises(ConfigError, match="never evaluated its model on a validation and a test"):
        compare([load(tmp_path), load(tmp_path)])


@pytest.mark.parametrize("make", [ShowRounds, partial(RunWriter, "never")])
def test_every_no_rounds_is_refused_before_the_run(make):
    with pytest.raises(ConfigError, match="every = 0; allowed: an integer >= 1"):
        make(every=0)


def test_a_notebook_sees_one_line_a_round_in_place_of_flowers(tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO, "flwr")
    written(tmp_path, ShowRounds(every=2), num_rounds=4, validation=threshold_validation())
    assert [r for r in caplog.records if r.name == "flwr" and r.levelno < logging.WARNING] == []
    assert logging.getLogger("flwr").level == logging.INFO
    told = [
        line.split(" replies, validation acc")[0] for line in capsys.readouterr().out.split("\n")
    ]
    assert told == ["round 2: 3 of 3", "round 4: 3 of 3", ""]
