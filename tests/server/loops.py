"""Loops of somebody else's around a strategy, and a callback that notes what it is told."""

from __future__ import annotations

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import Callback, StopTraining
from tests.strategies.lines import Movers

ONE_WRONG = [[1.0, 0.0], [0.0, 1.0], [-2.0, -1.0], [3.0, 2.0]]


def four() -> LocalGrid:
    return LocalGrid(Movers(ONE_WRONG), 4)


class Passing(Strategy):
    """Hands every call on, as Flower's wrappers do; the loop is Flower's."""

    def __init__(self, strategy: Strategy) -> None:
        self.inner = strategy

    def configure_train(self, server_round, arrays, config, grid):
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        return self.inner.aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round, arrays, config, grid):
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()


class Noting(Callback):
    """Notes what it is told, and stops where it is to."""

    def __init__(self, stop_in: int | None = None) -> None:
        self.noted: list[object] = []
        self.stop_in = stop_in

    def on_start(self, strategy):
        self.noted.append("start")

    def on_model(self, server_round, model):
        self.noted.append(server_round)
        if server_round == self.stop_in:
            raise StopTraining("enough")

    def on_end(self):
        self.noted.append("end")


def fixed(kind: str, strategy: Strategy, noise: float = 0.0, clients: int = 4) -> Strategy:
    wrapper = getattr(flower, f"DifferentialPrivacy{kind}FixedClipping")
    return wrapper(strategy, noise, clipping_norm=100.0, num_sampled_clients=clients)


def adaptive(kind: str, strategy: Strategy, noise: float = 0.0, clients: int = 4) -> Strategy:
    wrapper = getattr(flower, f"DifferentialPrivacy{kind}AdaptiveClipping")
    return wrapper(strategy, noise, clients, initial_clipping_norm=100.0)


WRAPPERS = [(how, kind) for how in (fixed, adaptive) for kind in ("ServerSide", "ClientSide")]
