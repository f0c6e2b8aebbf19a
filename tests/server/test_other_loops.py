"""Loops that are not the strategy's own: Flower's wrappers, a user's `start`, bare calls."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedif_flower import FedAvg, FedIF, PathAttribution, RunWriter
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.local_methods import Scaffold
from fedif_flower.messages.instructions import VECTOR_KEY, VECTOR_RECORD
from fedif_flower.messages.models import model_arrays, tensor_arrays
from fedif_flower.run.results import Run
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import Callback
from fedif_flower.stages import LossBound
from fedif_flower.strategies import Pace, Setup
from tests.server.hostile import alike, one_more, step_reply
from tests.server.loops import Noting, Passing, four
from tests.strategies.lines import BASE, Movers, column, point, validation


def recorded(folder) -> tuple[FedIF, PathAttribution, Noting]:
    held_out = validation()
    attribution, noting = PathAttribution(held_out), Noting()
    writer = RunWriter(folder, validation=held_out)
    return FedIF(held_out, callbacks=[attribution, writer, noting], **BASE), attribution, noting


def without_clocks(lines: list) -> list[dict]:
    return [
        {name: value for name, value in line.items() if not name.endswith("_seconds")}
        for line in lines
    ]


class OwnStart(FedIF):
    """Has a loop of its own: here, Flower's."""

    def start(self, *given, **named):
        return Strategy.start(self, *given, **named)


def by_wrapper(strategy: FedIF, arrays: ArrayRecord, rounds: int):
    result = Passing(strategy).start(four(), arrays, num_rounds=rounds)
    strategy.end()
    return result


def by_own_start(strategy: FedIF, arrays: ArrayRecord, rounds: int):
    strategy.__class__ = OwnStart
    return strategy.start(grid=four(), initial_arrays=arrays, num_rounds=rounds)


@pytest.mark.parametrize("run", [by_wrapper, by_own_start])
def test_another_loop_gives_the_same_bits_tables_and_contributions(run, tmp_path):
    strategy, attribution, noting = recorded(tmp_path / "own")
    same, of_same, noting_same = recorded(tmp_path / "other")
    arrays = model_arrays(point())
    expected = strategy.start(four(), arrays, num_rounds=3).arrays
    found = run(same, arrays, 3).arrays
    assert found["weight"].data == expected["weight"].data
    assert same.completed_rounds == 3
    assert noting_same.noted == noting.noted == ["start", 0, 1, 2, 3, "end"]
    assert of_same.contributions == attribution.contributions != {}
    one, other = Run(tmp_path / "own"), Run(tmp_path / "other")
    for table in ("rounds", "clients"):
        assert without_clocks(other.lines(table)) == without_clocks(one.lines(table)) != []
    assert len(other.lines("rounds")) == 4
    assert (tmp_path / "other" / "report.md").exists()
    # The stages know what to judge by, as the log says.
    (bound,) = [stage for stage in same.stages if type(stage).__name__ == "LossBound"]
    assert bound.validation is same.validation


@pytest.mark.parametrize("run", [by_wrapper, by_own_start])
def test_a_second_start_goes_on_counting(run, tmp_path):
    strategy, attribution, noting = recorded(tmp_path)
    arrays = run(strategy, model_arrays(point()), 2).arrays
    run(strategy, arrays, 2)
    assert [report.round for report in strategy.history.rounds] == [1, 2, 3, 4]
    assert [found.server_round for found in attribution.rounds] == [1, 2, 3, 4]
    assert noting.noted == ["start", 0, 1, 2, "end", "start", 3, 4, "end"]


def test_a_loop_that_is_started_again_ends_the_run_before():
    """Nobody has called `end`: the numbers tell."""
    noting = Noting()
    strategy = FedAvg(callbacks=[noting], **BASE)
    wrapper, arrays = Passing(strategy), model_arrays(point())
    arrays = wrapper.start(four(), arrays, num_rounds=2).arrays
    wrapper.start(four(), arrays, num_rounds=1)
    assert noting.noted == ["start", 0, 1, 2, "end", "start", 3]
    with pytest.raises(ConfigError, match="has begun with another model"):
        strategy.start(four(), model_arrays(point()))
    assert noting.noted[-1] == "end"


def test_a_loop_that_never_says_that_it_ended_is_told_how(caplog):
    Passing(FedAvg(callbacks=[Noting()], **BASE)).start(four(), model_arrays(point()))
    assert caplog.text.count("are not run by FedAvg.start: call its end() after the last one") == 1
    caplog.clear()
    by_own_start(FedIF(validation(), callbacks=[Noting()], **BASE), model_arrays(point()), 1)
    Passing(FedAvg(**BASE)).start(four(), model_arrays(point()))  # Nobody is told anything.
    assert "call its end()" not in caplog.text


def test_callbacks_learn_of_the_end_where_an_error_is_one():
    class Broken(FedAvg):
        def start(self, grid, arrays):
            list(self.configure_train(1, arrays, ConfigRecord(), grid))
            raise KeyError("a bug")

    for wrap, error in ((Passing, TrainingFailedError), (lambda own: own, KeyError)):
        noting = Noting()
        strategy = (Broken if error is KeyError else FedAvg)(callbacks=[noting], **BASE)
        with pytest.raises(error):
            wrap(strategy).start(LocalGrid(broken, 4), model_arrays(point()))
        assert noting.noted[0] == "start"
        assert noting.noted[-1] == "end"
        assert noting.noted.count("end") == 1


@pytest.mark.parametrize("wrap", [Passing, lambda own: own])
def test_the_last_of_too_many_rounds_that_failed_is_a_whole_round(wrap):
    noting = Noting()
    strategy = FedAvg(callbacks=[noting], **BASE)
    with pytest.raises(TrainingFailedError):
        wrap(strategy).start(LocalGrid(broken, 4), model_arrays(point()), num_rounds=9)
    assert noting.noted == ["start", 0, 1, 2, 3, "end"]
    assert strategy.completed_rounds == 3


def test_a_start_that_is_refused_ends_for_callbacks_before_they_see_its_model():
    noting = Noting()
    strategy = FedAvg(callbacks=[noting], stages=[LossBound(validation())], **BASE)
    for starts in (1, 2):
        with pytest.raises(ConfigError, match=r"^LossBound was given a model in which .weight."):
            strategy.start(four(), model_arrays(point(3)), num_rounds=1)
        assert noting.noted == ["start", "end"] * starts


def broken(message: Message, context) -> Message:
    raise OSError("no data here")


@pytest.mark.parametrize("stop_in", [0, 2])
def test_a_callback_that_stops_a_run_leaves_the_other_loop_nothing_to_ask(stop_in):
    noting = Noting(stop_in)
    strategy = FedAvg(callbacks=[noting], **BASE | {"fraction_evaluate": 1.0})
    result = Passing(strategy).start(LocalGrid(alike(one_more), 3), model_arrays(point(1)), 5)
    assert result.arrays["weight"].numpy().item() == stop_in
    assert len(strategy.history.rounds) == strategy.completed_rounds == stop_in
    assert noting.noted == ["start", *range(stop_in + 1), "end"]
    strategy.end()
    assert noting.noted.count("end") == 1


@pytest.mark.parametrize("wrap", [Passing, lambda strategy: strategy])
def test_another_loop_ends_with_the_model_too_where_all_rounds_fail(wrap):
    class Flowers(FedAvg):
        def start(self, *given, **named):
            return Strategy.start(self, *given, **named)

    def start(client, rounds):
        strategy = Flowers(**BASE | {"setup": Setup(device="cpu", max_failed_rounds=9)})
        grid = LocalGrid(client, 3)
        return wrap(strategy).start(grid, model_arrays(point(1)), rounds).arrays

    assert start(broken, 2)["weight"].numpy().item() == 0.0


def test_a_start_of_ones_own_without_rounds_returns_its_model():
    result = by_own_start(FedIF(validation(), **BASE), model_arrays(point()), 0)
    assert dict(result.arrays) == {}  # It has never called anything: there is no model.
    strategy = FedIF(validation(), **BASE)
    arrays = strategy.start(four(), model_arrays(point()), num_rounds=1).arrays
    assert by_own_start(strategy, arrays, 0).arrays == arrays


def test_a_model_that_cannot_be_evaluated_is_taken_back_in_another_loop_too():
    class Picky(Callback):
        def on_model(self, server_round, model):
            def examine(arrays):
                if server_round == 2 and arrays["weight"].numpy().item() > 1.5:
                    raise IndexError("this one I cannot evaluate")

            model.evaluate_or_take_back(examine)

    strategy = FedAvg(callbacks=[Picky()], **BASE)
    grid = LocalGrid(alike(one_more), 3)
    arrays = Passing(strategy).start(grid, model_arrays(point(1)), num_rounds=3).arrays
    assert arrays["weight"].numpy().item() == 2.0  # Round 3 makes again what round 2 had made.


class Steered(Movers):
    """Sends SCAFFOLD's vector as well, of ones, and notes the one that it got."""

    def __init__(self, steps):
        super().__init__(steps)
        self.got = []

    def train(self, message, partition_id):
        vector = message.content[VECTOR_RECORD][VECTOR_KEY].numpy()
        self.got.append(vector.tolist())
        reply = super().train(message, partition_id)
        reply.content[VECTOR_RECORD] = tensor_arrays({VECTOR_KEY: torch.ones(2)})
        return reply


class Doubled:
    """Goes on from twice the model that the strategy made."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        state = {name: 2 * values for name, values in arrays.to_torch_state_dict().items()}
        return ArrayRecord(state), metrics


class Doubling(Doubled, Passing):
    """Doubles around a strategy."""


class DoublingFedAvg(Doubled, FedAvg):
    """Doubles in a subclass, in the loop of the strategy itself."""


class Shown(Callback):
    def __init__(self):
        self.models = []

    def on_model(self, server_round, model):
        self.models.append(model.vectors.params.tolist())


def by_doubling_wrapper(grid: Grid, **settings):
    strategy = FedAvg(**settings)
    result = Doubling(strategy).start(grid, model_arrays(point()), num_rounds=3)
    strategy.end()
    return result


def by_doubling_subclass(grid: Grid, **settings):
    return DoublingFedAvg(**settings).start(grid, model_arrays(point()), num_rounds=3)


@pytest.mark.parametrize("run", [by_doubling_wrapper, by_doubling_subclass])
def test_what_is_made_of_a_model_is_what_callbacks_see_and_undoes_no_step(run, caplog):
    shown, attribution = Shown(), PathAttribution(validation())
    setup = Setup(device="cpu", trainable_keys=["weight"], local_method=Scaffold())
    clients = Steered([[1.0, 0.0]] * 2)
    callbacks = [shown, attribution]
    result = run(LocalGrid(clients, 2), callbacks=callbacks, fraction_evaluate=0.0, setup=setup)
    assert result.arrays["weight"].numpy().tolist() == [[14.0, 0.0]]
    assert shown.models == [[0.0, 0.0], [2.0, 0.0], [6.0, 0.0], [14.0, 0.0]]
    # (x - 4)^2 / 2 from 0 to 1, from 2 to 3, and from 6 to 7.
    decreases = [found.attributed for found in attribution.rounds]
    assert decreases == pytest.approx([3.5, 1.5, -2.5])
    assert caplog.text.count("begins with another model than the last step led to") == 1
    # All members send the vector on by 1 in each round.
    assert clients.got == [[0.0, 0.0]] * 2 + [[1.0, 1.0]] * 2 + [[2.0, 2.0]] * 2


class Looking:
    """Looks through all replies before it hands them on, as Flower's own strategies may."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.seen = []

    def aggregate_train(self, server_round, replies):
        self.seen += [reply.metadata.message_type for reply in replies]
        return super().aggregate_train(server_round, replies)

    def aggregate_evaluate(self, server_round, replies):
        self.seen += [reply.metadata.message_type for reply in replies]
        return super().aggregate_evaluate(server_round, replies)


class LookingFedAvg(Looking, FedAvg):
    """In the strategy's own loop."""


class LookingAgain(Looking, FedAvg):
    """In a loop of its own."""

    def start(self, *given, **named):
        return Strategy.start(self, *given, **named)


@pytest.mark.parametrize("kind", [LookingFedAvg, LookingAgain])
def test_a_subclass_may_look_through_the_replies_before_it_hands_them_on(kind):
    strategy = kind(fraction_evaluate=1.0, setup=BASE["setup"])
    grid = LocalGrid(alike(one_more), 3)
    result = strategy.start(grid, model_arrays(point(1)), num_rounds=2)
    assert result.arrays["weight"].numpy().tolist() == [[2.0]]
    assert strategy.seen == 2 * (["train"] * 3 + ["evaluate"] * 3)
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 1.0


class Wrapping(FedAvg):
    """Adds to what the strategy returns, and leaves the replies to it."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


class WrappingLooking(Looking, Wrapping):
    """Comes before it in the order of methods."""


def test_methods_of_a_subclass_are_called_in_their_order():
    strategy = WrappingLooking(**BASE)
    strategy.start(LocalGrid(alike(one_more), 3), model_arrays(point(1)), num_rounds=1)
    assert strategy.seen == ["train"] * 3

    class Base(FedAvg):
        def aggregate_train(self, server_round, replies):
            called.append("Base")
            return super().aggregate_train(server_round, replies)

    class Plain(Base):
        """Has none of its own."""

    class Middle(Base):
        def aggregate_train(self, server_round, replies):
            called.append("Middle")
            return super().aggregate_train(server_round, replies)

    class Last(Plain, Middle):
        """Gets that of Middle, which comes before Base."""

    called = []
    Last(**BASE).start(LocalGrid(alike(one_more), 3), model_arrays(point(1)), num_rounds=1)
    assert called == ["Middle", "Base"]


@pytest.mark.parametrize("kind", [FedAvg, Wrapping])
def test_a_loop_that_goes_through_the_replies_itself_is_told_that_none_are_left(kind):
    class Counting(kind):
        def start(self, grid, arrays):
            messages = self.configure_train(1, arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages)
            assert len(list(replies)) == 3
            return self.aggregate_train(1, replies)

    words = r"^Counting\.aggregate_train is given replies that were gone through before"
    with pytest.raises(ConfigError, match=words):
        Counting(**BASE).start(LocalGrid(alike(one_more), 3), model_arrays(point(1)))


def test_a_subclass_that_returns_no_model_keeps_the_one_before_the_round():
    class Refusing(FedAvg):
        """Takes no step in round 2."""

        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return None if server_round == 2 else arrays, metrics

    shown = Shown()
    strategy = Refusing(callbacks=[shown], **BASE)
    strategy.start(LocalGrid(alike(one_more), 3), model_arrays(point(1)), num_rounds=3)
    assert shown.models == [[0.0], [1.0], [1.0], [2.0]]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({}, "returned a model of type dict; allowed: an ArrayRecord"),
        (ArrayRecord(), "returned no model of this run: .* missing"),
        (model_arrays(point(3)), "returned no model of this run: .* shape"),
    ],
)
def test_a_subclass_that_returns_what_is_no_model_is_named(returned, words):
    class Wrong(FedAvg):
        def aggregate_train(self, server_round, replies):
            super().aggregate_train(server_round, replies)
            return returned, None

    with pytest.raises(ConfigError, match=r"^Wrong\.aggregate_train " + words):
        Wrong(**BASE).start(four(), model_arrays(point()), num_rounds=1)


def test_a_start_that_only_adds_to_the_strategy_s_own_ends_once():
    class Adding(FedAvg):
        def start(self, *given, **named):
            noting.noted.append("before")
            result = super().start(*given, **named)
            noting.noted.append("after")
            return result

    class More(Adding):
        def start(self, *given, **named):
            return super().start(*given, **named)

    noting = Noting()
    strategy = More(callbacks=[noting], **BASE)
    arrays = strategy.start(four(), model_arrays(point()), num_rounds=2).arrays
    assert arrays is strategy.model.record
    assert noting.noted == ["before", "start", 0, 1, 2, "end", "after"]
    with pytest.raises(ConfigError, match="no clients were asked by its configure_train"):
        strategy.aggregate_train(3, [])


def test_a_model_of_another_shape_is_refused_before_anybody_is_asked():
    strategy, clients = FedIF(validation(), **BASE), Movers([[1.0] * 3] * 4)
    with pytest.raises(ConfigError, match=r"'weight' has shape \[1, 2\]"):
        Passing(strategy).start(LocalGrid(clients, 4), model_arrays(point(3)))
    assert strategy.history.rounds == []


def test_a_round_without_a_question_of_the_strategy_s_own_is_refused():
    class Asking(FedAvg):
        """Draws and asks for itself, and does not say so."""

        def configure_train(self, server_round, arrays, config, grid):
            record = RecordDict({"arrays": arrays, "config": config})
            return [Message(record, node, "train") for node in grid.get_node_ids()]

    with pytest.raises(ConfigError, match=r"Asking.aggregate_train: no clients were asked by its"):
        Passing(Asking(**BASE)).start(four(), model_arrays(point()))
    with pytest.raises(ConfigError, match=r"Asking.configure_train asks 4 clients, and none was"):
        Asking(**BASE).start(four(), model_arrays(point()))


@pytest.mark.parametrize(
    ("first", "words"), [(1, r"does not ask node 1000; .* the 4 that"), (-1, r"asks node 99; ")]
)
def test_messages_to_others_than_were_drawn_are_refused(first, words):
    """Who was never asked was written down as away, round after round."""

    class Choosing(FedAvg):
        def configure_train(self, *given):
            asked = super().configure_train(*given)
            more = [Message(asked[0].content, 99, "train")]
            return asked[first:] if first > 0 else asked + more

    with pytest.raises(ConfigError, match=r"^Choosing\.configure_train " + words):
        Choosing(**BASE).start(four(), model_arrays(point()))


def test_messages_that_a_subclass_made_anew_are_answered_in_its_own_loop():
    class Anew(FedAvg):
        """Tells each client its own number."""

        def configure_train(self, *given):
            asked = []
            for message in super().configure_train(*given):
                node_id = message.metadata.dst_node_id
                own = ConfigRecord({"number": node_id})
                content = RecordDict({**message.content, "own": own})
                asked.append(Message(content, node_id, "train"))
            return asked

    strategy = Anew(**BASE)
    strategy.start(four(), model_arrays(point()), num_rounds=1)
    assert column(strategy.history.rounds[0], "status") == ["accepted"] * 4


def test_a_quorum_is_refused_where_another_loop_waits():
    strategy = FedAvg(**BASE | {"setup": Setup(device="cpu", pace=Pace(quorum=2))})
    with pytest.raises(ConfigError, match=r"quorum = 2; allowed: 0 where another loop"):
        Passing(strategy).start(four(), model_arrays(point()))
    Passing(strategy.__class__(**BASE)).start(four(), model_arrays(point()), num_rounds=1)


def of_another(message: Message, context) -> Message:
    """Client 1001 answers in the name of client 1002, before it; the others add 1."""
    reply = step_reply(message, 1.0)
    if context.node_id == 1001:
        reply = step_reply(message, 100.0)
        reply.metadata.__dict__["_src_node_id"] = 1002
    return reply


def test_a_reply_in_another_s_name_counts_for_nobody():
    strategy = FedAvg(**BASE)
    grid = LocalGrid(of_another, 4)
    arrays = Passing(strategy).start(grid, model_arrays(point(1)), num_rounds=1).arrays
    (report,) = strategy.history.rounds
    assert [c.node.node_id for c in report.clients if c.status == "accepted"] == [1000, 1002, 1003]
    assert report.clients[-1].rejection.endswith("the reply says that it comes from node 1002")
    assert arrays["weight"].numpy().item() == 1.0


def test_messages_that_were_made_anew_are_answered_nevertheless(caplog):
    class Anew(Passing):
        def configure_train(self, *given):
            asked = super().configure_train(*given)
            return [Message(m.content, m.metadata.dst_node_id, "train") for m in asked]

    strategy = FedAvg(**BASE)
    Anew(strategy).start(four(), model_arrays(point()), num_rounds=1)
    assert column(strategy.history.rounds[0], "status") == ["accepted"] * 4
    assert "the loop sent messages that the strategy did not make" in caplog.text


def test_a_run_may_begin_with_an_evaluation():
    noting = Noting()
    strategy = FedAvg(callbacks=[noting], **BASE | {"fraction_evaluate": 1.0})
    grid, arrays = LocalGrid(alike(one_more), 3), model_arrays(point(1))
    asked = list(strategy.configure_evaluate(0, arrays, ConfigRecord(), grid))
    assert noting.noted == ["start", 0]
    found = strategy.aggregate_evaluate(0, grid.send_and_receive(asked))
    assert dict(found) == {"accuracy": 1.0}  # Of client k it is k.
    # Rounds that are counted from 0 are the strategy's rounds from 1 on.
    for number in range(2):
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
    strategy.end()
    assert [report.round for report in strategy.history.rounds] == [1, 2]
    assert noting.noted == ["start", 0, 1, 2, "end"]


def test_a_loop_may_begin_the_run_itself():
    noting = Noting()
    strategy = FedAvg(callbacks=[noting], **BASE)
    grid, arrays = four(), model_arrays(point())
    strategy.begin(grid, arrays)
    strategy.aggregate_train(1, grid.send_and_receive(asked_in(1, strategy, arrays, grid)))
    strategy.end()
    assert noting.noted == ["start", 0, 1, "end"]


def asked_in(number: int, strategy: FedAvg, arrays: ArrayRecord, grid: Grid) -> list[Message]:
    return list(strategy.configure_train(number, arrays, ConfigRecord(), grid))


def test_a_grid_of_a_start_of_ones_own_screens_and_may_close_early():
    """Its grid is wrapped as it comes in, by position or by name."""
    seen: list[Grid] = []

    class Looking(FedAvg):
        def start(self, *given, **named):
            seen.extend(v for v in (*given, *named.values()) if isinstance(v, Grid))
            return Strategy.start(self, *given, **named)

    setup = Setup(device="cpu", pace=Pace(quorum=2))
    strategy = Looking(**BASE | {"setup": setup})
    arrays = model_arrays(point(1))
    strategy.start(LocalGrid(alike(one_more), 3), arrays, num_rounds=1)
    arrays = strategy.model.record
    strategy.start(grid=LocalGrid(alike(one_more), 3), initial_arrays=arrays, num_rounds=1)
    assert [type(grid).__name__ for grid in seen] == ["ScreenedGrid"] * 2
    assert [report.counts["accepted"] for report in strategy.history.rounds] == [2, 2]


def test_two_members_in_a_round_are_told_of_once(caplog):
    strategy = FedIF(validation(), **BASE)
    grid = LocalGrid(Movers([[1.0, 0.0], [0.9, 0.1]]), 2)
    strategy.start(grid, model_arrays(point()), num_rounds=3)
    assert column(strategy.history.rounds[0], "weight") == [0.0, 1.0]
    assert caplog.text.count("round 1: of two members the round's normalisation gives one 1") == 1
    assert caplog.text.count("of two members") == 1
