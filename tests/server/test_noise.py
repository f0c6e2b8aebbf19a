"""Flower's wrappers that add noise for weights of 1 / m, around strategies of this package."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Message
from flwr.serverapp import strategy as flower

from fedif_flower import FedAvg, FedIF, Krum, PathAttribution, RobustRule
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.stages import FedAvgM
from fedif_flower.strategies import Setup
from tests.server.hostile import step_reply
from tests.server.loops import ONE_WRONG, WRAPPERS, Passing, fixed, four
from tests.strategies.lines import BASE, Movers, Shifted, point, validation


class Clipped(Movers):
    """Says that it was not shortened, as Flower's mod of a client does."""

    def train(self, message, partition_id):
        reply = super().train(message, partition_id)
        reply.content["metrics"]["norm_bit"] = 0
        return reply


@pytest.mark.parametrize(("wrap", "kind"), WRAPPERS)
def test_a_wrapper_s_noise_is_refused_around_weights_that_depend_on_updates(wrap, kind):
    clients = Movers(ONE_WRONG)
    strategy = FedIF(validation(), **BASE)
    wrapper = wrap(kind, strategy, noise=0.01)
    with pytest.raises(ConfigError) as error:
        wrapper.start(LocalGrid(clients, 4), model_arrays(point()), num_rounds=1)
    said = (
        f"{type(wrapper).__name__} adds noise for members with weights of at most 1/4, but FedIF "
    )
    assert str(error.value).startswith(said)
    assert "the noise would not hide it; allowed: FedAvg or FedProx without stages" in str(
        error.value
    )
    assert strategy.history.rounds == []
    # A loop of one's own does not ask for a summary.
    with pytest.raises(ConfigError, match="adds noise for members with weights of at most 1/4"):
        wrapper.configure_train(1, model_arrays(point()), ConfigRecord(), four())


class OwnWeights(FedAvg):
    def weigh(self, updates):
        return super().weigh(updates)


@pytest.mark.parametrize(
    ("strategy", "model", "why"),
    [
        (RobustRule(Krum(), **BASE), point(), "RobustRule weighs them by what they send"),
        (OwnWeights(**BASE), point(), "OwnWeights weighs them by what they send"),
        (FedAvg(stages=[FedAvgM(0.5)], **BASE), point(), "stages = "),
        (FedAvg(**BASE), Shifted(), r"of arrays that are not trained \(shift\) medians"),
    ],
)
def test_only_a_plain_mean_bears_noise_for_equal_weights(strategy, model, why):
    names = {"trainable_keys": ["weight"]} if isinstance(model, Shifted) else {}
    strategy = FedAvg(**BASE | {"setup": Setup(device="cpu", **names)}) if names else strategy
    with pytest.raises(ConfigError, match=f"1/4, but {why}"):
        fixed("ServerSide", strategy).start(four(), model_arrays(model), num_rounds=1)


def test_a_strategy_between_the_two_makes_no_difference():
    class Renamed(flower.DifferentialPrivacyServerSideFixedClipping):
        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, config, grid)

    wrapper = Renamed(Passing(FedIF(validation(), **BASE)), 0.01, 10.0, 4)
    with pytest.raises(ConfigError, match="Renamed adds noise"):
        wrapper.start(four(), model_arrays(point()), num_rounds=1)


@pytest.mark.parametrize(("wrap", "kind"), WRAPPERS)
def test_a_mean_of_equal_examples_is_combined_and_gets_the_noise(wrap, kind):
    attribution = PathAttribution(validation())
    base = BASE | {"setup": Setup(device="cpu", trainable_keys=["weight"])}
    strategy = FedAvg(callbacks=[attribution], **base)
    steps = [[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 3.0]]
    grid = LocalGrid(Clipped(steps), 4)
    arrays = wrap(kind, strategy).start(grid, model_arrays(point()), num_rounds=2).arrays
    assert arrays["weight"].numpy().tolist() == [[2.0, 2.0]]
    # With noise the model of each round is another than the one that was combined.
    noisy = wrap(kind, strategy, noise=1e-3)
    arrays = noisy.start(grid, arrays, num_rounds=2).arrays
    found = arrays["weight"].numpy()
    assert abs(found - 4.0).max() < 1.0
    assert found.tolist() != [[4.0, 4.0]]
    strategy.end()
    # No step was taken back, though the model is another one: (x - 4)^2 / 2 + (y - 2)^2 / 2.
    assert strategy.completed_rounds == 4
    assert [len(of.clients) for of in attribution.rounds] == [4] * 4
    assert attribution.rounds[0].attributed == pytest.approx(10 - (3.0**2 + 1.0**2) / 2)


@pytest.mark.parametrize(
    ("examples", "clients", "why"),
    [
        ([10, 10, 10, 30], 4, "members report from 10 to 30 examples"),
        ([10, 10, 10, 10], 5, "4 replies are usable, and the noise that is added is for 5"),
    ],
)
def test_a_round_in_which_a_member_counts_for_more_makes_no_model(examples, clients, why):
    strategy = FedAvg(**BASE)
    grid = LocalGrid(Movers(ONE_WRONG, examples), 4)
    wrapper = fixed("ServerSide", strategy, noise=1.0, clients=clients)
    with pytest.raises(TrainingFailedError, match=f"3 rounds in a row .*{why}"):
        wrapper.start(grid, model_arrays(point()), num_rounds=5)
    assert strategy.model.vectors.params.tolist() == [0.0, 0.0]


def test_a_federation_of_federations_is_not_taken_for_a_wrapped_one():
    def inner(message: Message, context) -> Message:
        """A member that is a federation of its own, in the same process."""
        FedIF(validation(), **BASE).start(four(), model_arrays(point()), num_rounds=1)
        return step_reply(message, 1.0)

    wrapper = fixed("ServerSide", FedAvg(**BASE))
    arrays = wrapper.start(LocalGrid(inner, 4), model_arrays(point()), num_rounds=1).arrays
    assert arrays["weight"].numpy().tolist() == [[1.0, 1.0]]
