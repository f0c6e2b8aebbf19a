"""The loop around a strategy: evaluation, callbacks, early ends, models that are taken back."""

from __future__ import annotations

import gc
import logging
import re
import weakref
from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from torch import nn

from fedif_flower import FedAvg, FedIF, RobustRule, Validation
from fedif_flower.aggregators import CentredClipping, FedAdp
from fedif_flower.errors import TrainingFailedError, ValuationError
from fedif_flower.local_methods import Guide, LocalMethod
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import Aggregation
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import Callback, StopTraining
from fedif_flower.stages import FedAvgM, LossBound, ServerOptimizer
from fedif_flower.strategies import ScreenedStrategy, Setup
from tests.server.hostile import Clients, alike, one_more, round_of, step_reply
from tests.strategies.lines import (
    BASE,
    Movers,
    Threshold,
    column,
    play,
    point,
    threshold_validation,
    validation,
)


def value(arrays: ArrayRecord) -> float:
    return round(arrays["weight"].numpy().item(), 4)  # Thirds do not sum to 1 exactly.


def start(*callbacks: Callback, rounds: int = 3, **started):
    """Three clients that add 1 in each round."""
    strategy, grid = FedAvg(callbacks=callbacks, **BASE), LocalGrid(alike(one_more), 3)
    return strategy.start(grid, model_arrays(point(1)), num_rounds=rounds, **started)


class Watching(Callback):
    def on_model(self, server_round, model):
        return {"value": value(model.record)}


def test_rounds_of_a_second_start_go_on_counting():
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"found": value(arrays)})

    strategy, model = FedAvg(callbacks=[Watching()], **BASE), model_arrays(point(1))
    for rounds in (5, 2):
        grid = LocalGrid(alike(one_more), 3)
        result = strategy.start(grid, model, rounds, evaluate_fn=evaluate)
        model = result.arrays
    found = {t: dict(metrics) for t, metrics in result.evaluate_metrics_serverapp.items()}
    assert found == {6: {"found": 6.0, "value": 6.0}, 7: {"found": 7.0, "value": 7.0}}


def test_an_evaluation_that_fails_on_one_model_takes_it_back():
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if 1.5 < value(arrays) < 2.5 and server_round < 3:
            raise IndexError("this one I cannot evaluate")
        return MetricRecord({"found": value(arrays)})

    result = start(evaluate_fn=evaluate)
    found = [m["found"] for m in result.evaluate_metrics_serverapp.values()]
    # Round 2's model is undone, and round 3 makes it again.
    assert found == [0.0, 1.0, 1.0, 2.0]
    assert value(result.arrays) == 2.0


def test_an_evaluation_that_always_fails_ends_nothing_and_blames_nobody():
    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            raise OSError("the tracker is gone")

    assert value(start(evaluate_fn=evaluate).arrays) == 3.0


@pytest.mark.parametrize("returned", [0.5, {"accuracy": "high"}])
def test_an_evaluation_that_returns_no_metrics_after_a_round_ends_nothing(caplog, returned):
    def evaluate(server_round: int, arrays: ArrayRecord):
        return returned if server_round else None

    assert value(start(evaluate_fn=evaluate).arrays) == 3.0
    assert caplog.text.count("the evaluation failed") == 3


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ((0.5, {"accuracy": 0.9}), r"returned tuple; allowed: MetricRecord\("),  # The older API's.
        (0.5, r"returned float; allowed: MetricRecord\("),
        ({"loss": torch.tensor(0.5)}, "returned no metrics: .*Tensor"),
    ],
)
def test_whose_metrics_are_none_is_named_before_the_first_round(returned, words):
    class Looks(Callback):
        def on_model(self, server_round, model):
            return returned

    with pytest.raises(ValuationError, match="^evaluate_fn " + words):
        start(evaluate_fn=lambda server_round, arrays: returned)
    with pytest.raises(ValuationError, match=r"^Looks\.on_model " + words):
        start(Looks())


@pytest.mark.parametrize("returned", [False, (), {}])
def test_a_callback_that_returns_nothing_much_has_no_metrics(returned):
    class Looks(Callback):
        def on_model(self, server_round, model):
            return returned

    assert start(Looks()).evaluate_metrics_serverapp == {}


def test_a_round_whose_metrics_are_none_is_complete_before_it_ends_the_run():
    class Looks(Callback):
        def __init__(self):
            self.told = []

        def on_model(self, server_round, model):
            return {"loss": torch.tensor(0.5) if server_round == 2 else 0.5}

        def on_metrics(self, server_round, metrics):
            self.told.append((server_round, dict(metrics)))

        def on_round_end(self, server_round):
            self.told.append(server_round)

    looks = Looks()
    with pytest.raises(ValuationError, match=r"^Looks\.on_model returned no metrics"):
        start(looks)
    loss = {"loss": 0.5}
    assert looks.told == [(0, loss), 0, (1, loss), 1, (2, {}), 2]


class Mistaken(FedAvg):
    def weigh(self, updates):
        return {}["a"]


def test_an_error_of_an_app_s_own_is_told_with_its_line_and_ends_the_run_as_its_cause():
    strategy = Mistaken(**BASE)
    line = Mistaken.weigh.__code__.co_firstlineno + 1
    reason = f"KeyError('a') at test_round_loop.py:{line} in Mistaken.weigh"
    with pytest.raises(TrainingFailedError, match=re.escape(f"first reason: {reason}")) as raised:
        strategy.start(LocalGrid(alike(one_more), 3), model_arrays(point(1)), num_rounds=3)
    assert [report.reason for report in strategy.history.rounds] == [reason] * 3
    assert isinstance(raised.value.__cause__, KeyError)
    assert strategy.history.rounds[0].error is None  # It would keep the round's updates.


def test_a_run_that_has_failed_keeps_no_round_s_updates():
    class Remembering(FedAvg):
        def weigh(self, updates):
            weighed.append(weakref.ref(updates))
            raise ValueError("never")

    weighed = []
    strategy = Remembering(**BASE)
    with pytest.raises(TrainingFailedError):
        strategy.start(LocalGrid(alike(one_more), 3), model_arrays(point(1)), num_rounds=3)
    gc.collect()
    assert [updates() for updates in weighed] == [None] * 3


class Silent(LocalGrid):
    """Nodes that never answer."""

    def pull_messages(self, message_ids):
        return []


class StopAtOnce(Callback):
    def on_model(self, server_round, model):
        raise StopTraining("enough")


def failing(message: Message, context: Context) -> Message:
    raise OSError("no data here")


@pytest.mark.parametrize("grid", [LocalGrid(failing, 3), Silent(alike(one_more), 3)])
@pytest.mark.parametrize("earlier", [0, 2])
def test_a_run_whose_rounds_all_fail_returns_the_model_that_it_has(grid, earlier):
    strategy, model = FedAvg(**BASE), model_arrays(point(1))
    model = strategy.start(LocalGrid(alike(one_more), 3), model, earlier).arrays
    result = strategy.start(grid, model, num_rounds=1)
    # Where all clients raise an error, their model is taken back to the one before.
    undone = earlier and not isinstance(grid, Silent)
    assert value(result.arrays) == earlier - bool(undone)


@pytest.mark.parametrize(("started", "led_to"), [({}, 0.0), ({"rounds": 0}, 0.0)])
def test_a_run_that_ends_before_its_first_round_returns_its_model(started, led_to):
    assert value(start(StopAtOnce(), **started).arrays) == led_to


def test_rounds_that_nobody_changes_the_model_in_keep_the_clients_metrics():
    def unchanged(message: Message, context: Context) -> Message:
        return step_reply(message, 0.0)

    strategy = FedAvg(**BASE)
    arrays = model_arrays(point(1))
    result = strategy.start(LocalGrid(unchanged, 3), arrays, num_rounds=5)
    assert [report.status for report in strategy.history.rounds] == ["failed"] * 5
    losses = {t: metrics["train-loss"] for t, metrics in result.train_metrics_clientapp.items()}
    assert losses == dict.fromkeys(range(1, 6), 1.0)


def test_a_round_that_the_rule_fails_keeps_the_clients_metrics():
    class Failing(FedAvg):
        def weigh(self, updates):
            raise ValuationError("nothing to weigh by")

    strategy = Failing(**BASE)
    result = strategy.start(LocalGrid(alike(one_more), 3), model_arrays(point(1)), num_rounds=1)
    assert strategy.history.rounds[0].failed
    assert dict(result.train_metrics_clientapp[1])["train-loss"] == 1.0


class Nobody(FedAvg):
    """Gives nobody any weight."""

    def weigh(self, updates):
        return Aggregation(weights=0 * updates.num_examples)


@pytest.mark.parametrize(
    ("strategy", "steps", "status", "reason"),
    [
        (FedAvg(**BASE), [0.0, 0.0], "failed", "no accepted reply changes the model"),
        (FedIF(validation(), **BASE), [0.0] * 2, "failed", "no accepted reply changes the model"),
        (Nobody(**BASE), [1.0, 2.0], "kept", "every accepted update has weight 0"),
        (FedAvg(**BASE), [1.0, -1.0], "failed", "the accepted updates, as they were weighed"),
    ],
)
def test_each_way_of_leading_nowhere_has_its_reason_and_the_run_goes_on(
    strategy, steps, status, reason, caplog
):
    params, reports = play(strategy, point(), Movers([[step, step] for step in steps]), rounds=5)
    assert params.tolist() == [0.0, 0.0]
    assert [report.status for report in reports] == [status] * 5  # Beyond max_failed_rounds.
    assert all(report.reason.startswith(reason) for report in reports)
    assert caplog.text.count(reason) == 5
    scores = [0.0] * 2 if isinstance(strategy, FedIF) else [None] * 2
    assert column(reports[0], "score") == scores  # Which are recorded all the same.


def test_a_model_that_momentum_moves_on_does_not_stand_still():
    strategy = FedAvg(stages=[FedAvgM(0.5, 0.5)], **BASE)
    led_to, _ = play(strategy, point(), Movers([[1.0, 0.0]] * 2))
    goes_on = point()
    torch.nn.utils.vector_to_parameters(led_to, goes_on.parameters())
    params, (report,) = play(strategy, goes_on, Movers([[0.0, 0.0]] * 2))
    assert not report.failed
    assert (led_to.tolist(), params.tolist()) == ([0.5, 0.0], [0.75, 0.0])


def test_what_half_precision_cannot_hold_fails_the_round_and_not_the_run():
    """Momentum 9/10 goes to 20000 and 42000, and on to 42000 + 0.9 * 22000 + 4000 = 65800.

    float16 ends at 65504. Begun anew, round 4 adds 4000 to 42000.
    """

    def reply(message: Message, context: Context) -> Message:
        return step_reply(message, 20000.0 if round_of(message) == 1 else 4000.0)

    strategy = FedAvg(stages=[FedAvgM(0.9, 1.0)], **UNPAUSED)
    result = strategy.start(LocalGrid(alike(reply), 3), model_arrays(point(1).half()), 4)
    assert [report.failed for report in strategy.history.rounds] == [False, False, True, False]
    assert "the aggregated model is not finite" in strategy.history.rounds[2].reason
    assert value(result.arrays) == pytest.approx(46000.0, abs=64.0)  # Numbers are 32 apart there.


def test_an_optimizer_that_leads_out_of_all_numbers_fails_the_round():
    """A step of 4000, times 1e38, is beyond float32; a step of 0 is not."""

    def reply(message: Message, context: Context) -> Message:
        return step_reply(message, 4000.0 if round_of(message) == 1 else 1.0)

    beyond = ServerOptimizer(partial(torch.optim.SGD, lr=1e38))
    strategy = FedAvg(stages=[beyond], **UNPAUSED)
    result = strategy.start(LocalGrid(alike(reply), 3), model_arrays(point(1)), 2)
    first, second = strategy.history.rounds
    assert first.reason.startswith("the aggregated model is not finite: ServerOptimizer")
    assert (first.status, second.status) == ("failed", "advanced")
    assert value(result.arrays) == pytest.approx(1e38)


def test_the_loss_of_a_step_that_is_not_taken_bounds_none():
    """The third step would have led to the least loss there is; as the test above."""

    def reply(message: Message, context: Context) -> Message:
        return step_reply(message, 20000.0 if round_of(message) == 1 else 4000.0)

    least = torch.full((2, 1), 65800.0)
    judge = Validation(point(1), torch.ones(2, 1), least, loss_fn=nn.L1Loss(), device="cpu")
    bound = LossBound(judge, descent_steps=0)
    strategy = FedAvg(stages=[bound, FedAvgM(0.9, 1.0)], **UNPAUSED)
    result = strategy.start(LocalGrid(alike(reply), 3), model_arrays(point(1).half()), 4)
    assert [report.failed for report in strategy.history.rounds] == [False, False, True, False]
    assert bound.remark() == ""
    assert bound.state_dict()["least"] == pytest.approx(65800 - value(result.arrays), abs=64.0)


class Failing(Guide, LocalMethod):
    """Raises whenever it is asked for what depends on reports."""

    def guide(self) -> Guide:
        return self

    def choose_members(self, members, server_round):
        raise ValueError("nothing can be fitted")

    def take(self, server_round, client_ids, reports):
        raise ZeroDivisionError("nobody reported")


def test_a_guide_that_fails_stops_no_round(caplog):
    strategy = FedAvg(**BASE | {"setup": Setup(device="cpu", local_method=Failing())})
    with caplog.at_level(logging.ERROR):
        params, reports = play(strategy, point(), Movers([[1, 0], [3, 0]]), rounds=2)
    assert params.tolist() == [4.0, 0.0]
    assert [column(report, "status") for report in reports] == [["accepted"] * 2] * 2
    assert sum("reports cannot be used" in message for message in caplog.messages) == 4


class Counting(Callback):
    """Says how many rounds there were, raises in one of them, and notes what it is told."""

    def __init__(self, error: Exception, in_round: int) -> None:
        self.noted: list[object] = []
        self.error, self.in_round = error, in_round

    def on_model(self, server_round, model):
        if server_round == self.in_round:
            raise self.error
        return {"rounds-so-far": float(server_round)}

    def on_metrics(self, server_round, metrics):
        self.noted.append((server_round, dict(metrics)))

    def on_round_end(self, server_round):
        self.noted.append(server_round)

    def on_end(self):
        self.noted.append("end")


def played(counting: Counting) -> FedIF:
    strategy = FedIF(threshold_validation(), callbacks=[counting], **BASE)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=5)
    return strategy


def test_rounds_and_clients_are_tables_though_a_callback_ended_the_run():
    counting = Counting(StopTraining("enough"), in_round=2)
    history = played(counting).history
    clients = history.to_pandas()
    assert list(clients["round"]) == [1, 1, 1, 2, 2, 2]
    assert list(clients["client_id"]) == [1000, 1001, 1002] * 2
    of_files = set(RunFolder("").clients.columns)
    assert {*clients.columns, "malicious"} == of_files, "see _CLIENT in fedif_flower/run/folder.py"
    rounds = history.to_pandas("rounds")
    assert list(rounds["round"]) == [0, 1, 2]
    assert list(rounds["accepted"].fillna(-1)) == [-1, 3, 3]
    assert list(rounds["rounds-so-far"].fillna(-1)) == [0.0, 1.0, -1]
    first, second = (0, {"rounds-so-far": 0.0}), (1, {"rounds-so-far": 1.0})
    assert counting.noted == [first, 0, second, 1, (2, {}), 2, "end"]


class Stopping(Callback):
    """Ends the run as soon as it is told something of round 1."""

    def on_round(self, report):
        raise StopTraining("enough")


def test_a_round_after_which_a_callback_stops_is_complete():
    noting = Counting(StopTraining("never"), in_round=-1)
    result = start(Stopping(), noting)
    assert value(result.arrays) == 1.0
    assert list(result.train_metrics_clientapp) == [1]
    assert result.evaluate_metrics_serverapp[1]["rounds-so-far"] == 1.0
    first, second = (0, {"rounds-so-far": 0.0}), (1, {"rounds-so-far": 1.0})
    assert noting.noted == [first, 0, second, 1, "end"]


def test_a_round_in_which_a_callback_fails_does_not_end():
    counting = Counting(RuntimeError("broken"), in_round=1)
    with pytest.raises(RuntimeError, match="broken"):
        played(counting)
    assert counting.noted == [(0, {"rounds-so-far": 0.0}), 0, (1, {}), "end"]


class FullDisk(Callback):
    """Can write neither a round's metrics nor the end."""

    def on_metrics(self, server_round, metrics):
        raise OSError("no space left for metrics")

    def on_end(self):
        raise OSError("no space left for the end")


def test_the_error_that_ends_a_run_is_the_first_one(caplog):
    broken = Counting(RuntimeError("broken"), in_round=0)
    with pytest.raises(RuntimeError, match="broken"):
        start(broken, FullDisk())
    assert "a callback fails at the end of the run: OSError('no space left for the end')" in (
        caplog.text
    )


# -- a model that nobody can go on from: one reply costs two rounds, not the run


HUGE = 5e14  # Let in by the screening; the product of two such layers leaves float32.
UNPAUSED = BASE | {"setup": Setup(device="cpu", max_paused_turns=0)}


def line() -> nn.Module:
    return nn.Sequential(point(1), point(1))


def far(loss_fn=nn.functional.mse_loss) -> Validation:
    inputs, targets = torch.ones(1, 1), torch.full((1, 1), 1e3)
    model = line()
    for parameter in model.parameters():
        nn.init.ones_(parameter)  # At zeros the gradient is 0, which would be refused.
    return Validation(model, inputs, targets, loss_fn=loss_fn, device="cpu")


def huge_in(*rounds: int):
    """A client that adds 1; partition 1 adds far more in these rounds."""

    def reply(message: Message, context: Context) -> Message:
        hostile = context.node_config["partition-id"] == 1
        return step_reply(message, HUGE if hostile and round_of(message) in rounds else 1.0)

    return reply


def run(strategy: ScreenedStrategy, *clients, rounds: int = 4) -> tuple[float, list[bool]]:
    """Return the first weight, and which rounds failed."""
    three = Clients(dict(enumerate(clients * (3 // len(clients)))))
    params, reports = play(strategy, line(), three, rounds)
    return params[0].item(), [report.failed for report in reports]


def where_huge(fail):
    """The same, of a huge step in round 1; on a model that is huge by then each client fails."""

    def reply(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"].values()
        is_huge = max(abs(array.numpy()).max() for array in arrays) > 1e6
        return fail(message) if is_huge else huge_in(1)(message, context)

    return reply


def own_loss(outputs, targets):
    if outputs.abs().max() > 1e6:
        raise IndexError("a loss of the user's own")
    return nn.functional.mse_loss(outputs, targets)


@pytest.mark.parametrize(
    ("strategy", "client", "reason"),
    [
        # The gradient at 0 is 0, so that round 1's weights are equal, the hostile client's too.
        # Without bounds: with them such a step is not taken in the first place.
        (FedIF(far(), stages=(), **UNPAUSED), huge_in(1), "finite"),
        (FedIF(far(own_loss), stages=(), **UNPAUSED), huge_in(1), "a loss of the user's own"),
        (FedAvg(**UNPAUSED), where_huge(lambda _: 1 / 0), "most clients fail on this model"),
        (FedAvg(**UNPAUSED), where_huge(lambda m: step_reply(m, torch.nan)), "0 valid replies"),
    ],
)
def test_a_run_goes_on_from_the_last_model_that_worked(strategy, client, reason, caplog):
    # Round 1 is undone by round 2; rounds 3 and 4 add 1 each.
    assert run(strategy, client) == (pytest.approx(2.0), [False, True, False, False])
    assert reason in strategy.history.rounds[1].reason
    says_nothing = "round 1: the influence of all 3 updates is exactly 0, since the gradient"
    assert (says_nothing in caplog.text) is isinstance(strategy, FedIF)


class SilentInRound(LocalGrid):
    """Three nodes that do not answer in one round."""

    def __init__(self, client_app, silent_round: int) -> None:
        super().__init__(client_app, 3)
        self._left = silent_round

    def stream_replies(self, messages, *, timeout=None):
        replies = list(super().stream_replies(messages))
        self._left -= 1
        return iter([] if self._left == 0 else replies)


# With momentum 1/2 in round 1, nothing in round 2, 1/4 + 1/2 in round 3.
@pytest.mark.parametrize(("stages", "led_to"), [([], 2.0), ([FedAvgM(0.5, 0.5)], 1.25)])
def test_silence_does_not_blame_the_model_and_makes_no_step(stages, led_to):
    strategy = FedAvg(stages=stages, **UNPAUSED)
    grid = SilentInRound(alike(one_more), silent_round=2)
    arrays = strategy.start(grid, model_arrays(line()), num_rounds=3).arrays
    assert arrays["0.weight"].numpy().item() == pytest.approx(led_to)


def test_clients_that_always_fail_do_not_blame_the_model():
    def failing(message: Message, context: Context) -> Message:
        raise OSError("no data here")

    found = run(FedAvg(**UNPAUSED), failing, one_more, one_more, rounds=3)
    assert found == (pytest.approx(3.0), [False] * 3)


def test_a_model_that_is_taken_back_takes_its_mean_with_it():
    strategy = FedIF(far(), stages=[FedAvgM(0.5, 0.5)], **UNPAUSED)
    # Round 2 is undone by round 3; rounds 1 and 4 move by 1/2 and 1/4 + 1/2.
    expected = pytest.approx(1.25), [False, False, True, False]
    assert run(strategy, huge_in(2)) == expected


class DownAndBack(Movers):
    """In round 2 all go down to the bottom, where each fails."""

    def train(self, message, partition_id):
        if round_of(message) == 3:
            raise RuntimeError("I cannot train this model")
        steps = [[7.0, 3.0]] * 3 if round_of(message) == 2 else self.steps
        return Movers(steps).train(message, partition_id)


def test_a_rule_forgets_the_step_that_is_taken_back():
    """Of equal updates the centre is where they are: (1, 1), then (7, 3)."""
    rule = CentredClipping()
    strategy = RobustRule(rule, **BASE)
    grid = LocalGrid(DownAndBack([[1.0, 1.0]] * 3), 3)
    strategy.start(grid, model_arrays(point()), num_rounds=2)
    assert rule.last_step.tolist() == [7.0, 3.0]
    again = CentredClipping()
    again.load_state_dict(rule.state_dict())
    again.take_back()
    strategy.start(grid, strategy.model.record, num_rounds=1)
    assert strategy.history.rounds[-1].failed
    assert rule.last_step.tolist() == again.last_step.tolist() == [1.0, 1.0]


class EndsRoundTwo(Callback):
    """Ends a run by an error once round 2 has been weighed."""

    def on_round(self, current):
        if current.round == 2:
            raise RuntimeError("no more")


@pytest.mark.parametrize(
    "make",
    [
        lambda **base: FedIF(threshold_validation(), **base),
        lambda **base: RobustRule(CentredClipping(), **base),
        lambda **base: RobustRule(FedAdp(), **base),
        lambda **base: FedAvg(stages=[FedAvgM(0.5, 0.5)], **base),
    ],
)
def test_a_round_that_an_error_ended_is_learned_from_once_when_it_is_done_again(make):
    grid = LocalGrid(Movers([[1.5], [-1.0], [2.0]]), 3)
    undisturbed = make(**BASE)
    undisturbed.start(grid, model_arrays(Threshold()), num_rounds=3)
    failing = EndsRoundTwo()
    strategy = make(callbacks=[failing], **BASE)
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(grid, model_arrays(Threshold()), num_rounds=3)
    strategy.callbacks.remove(failing)
    result = strategy.start(grid, strategy.model.record, num_rounds=2)
    assert result.arrays == undisturbed.model.record
    assert learned(strategy) == learned(undisturbed)


def learned(strategy: ScreenedStrategy) -> str:
    return repr({name: part.state_dict() for name, part in strategy.learned().items()})


def test_the_loss_of_a_model_that_is_taken_back_bounds_no_step():
    """With momentum to (.5, .5), to (4.25, 2.25) and back, to (1.25, 1.25) and (2.125, 2.125).

    The losses are 10, 7.25, 1/16, 7.25, 4.06 and 1.77: each is below the one before it, but the
    last two are not within 1 of 1/16.
    """
    bound = LossBound(validation(), descent_steps=0)
    strategy = FedAvg(stages=[bound, FedAvgM(0.5, 0.5)], **BASE)
    params, reports = play(strategy, point(), DownAndBack([[1.0, 1.0]] * 3), rounds=5)
    assert [report.failed for report in reports] == [False, False, True, False, False]
    assert params.tolist() == [2.125, 2.125]
    assert bound.remark() == ""
