"""Each way from Flower's older API ends in one sentence that names the message API."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.server import Server, SimpleClientManager
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.server.strategy import FedAvg as OlderFedAvg
from torch import nn

from fedif_flower import FedAvg, FedIF, model_arrays
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.messages.text import reason_of
from fedif_flower.runtime.local_grid import LocalGrid
from tests.server.test_partial_exchange import DATA, net
from tests.strategies.lines import BASE, KINDS, built, validation

SERVED = r"only the message API is served \(docs/tutorial/own-app\.md\)"
NOW = set(inspect.signature(FedAvg).parameters)
OLDER = sorted(set(inspect.signature(OlderFedAvg).parameters) - NOW)


@pytest.mark.parametrize("name", OLDER)
def test_an_older_argument_is_answered_by_what_it_is_called_now(name):
    words = rf"^FedIF: {name} is of Flower's older API; {SERVED}: there "
    with pytest.raises(ConfigError, match=words) as caught:
        FedIF(validation(), **{name: None})
    now = str(caught.value).rpartition("there it is ")[2].split(" of start()")
    taken = inspect.signature(FedIF.start).parameters if len(now) > 1 else NOW
    assert now[0] in taken or str(caught.value).endswith("there is no such argument there")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_strategy_cannot_do_without_is_named(kind: Any):
    (first, parameter), *_ = inspect.signature(kind).parameters.items()
    if parameter.default is not parameter.empty:
        assert kind(fraction_evaluate=0.0).fraction_evaluate == 0
        return
    with pytest.raises(ConfigError, match=f"^{kind.__name__} needs {first}, before Flower's own"):
        kind(fraction_evaluate=0.5)
    strategy = built(kind, net(), DATA)
    assert type(copy.copy(strategy)) is kind  # Which is made without arguments.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FedIF(validation(), 0.5), "^FedIF takes only validation without a name; Flower's"),
        (lambda: FedAvg(0.5), r"^FedAvg takes no argument without a name; .* fraction_train=0\.5$"),
    ],
)
def test_flower_s_arguments_have_names(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


class HandsOn(FedAvg):
    """Takes whatever its base class does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class HandsMoreOn(FedIF):
    """Takes whatever its base class does, and one more."""

    def __init__(self, *args: Any, extra: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.extra = extra


def test_a_subclass_may_hand_on_all_arguments():
    assert HandsOn(fraction_train=0.5).fraction_train == 0.5
    assert HandsMoreOn(validation=validation(), extra=2).extra == 2
    assert HandsMoreOn(validation(), extra=3, **BASE).fraction_evaluate == 0
    with pytest.raises(TypeError, match="nonsense"):  # Not that it takes nothing without a name.
        HandsMoreOn(validation(), nonsense=2)


@pytest.mark.parametrize("is_private", [False, True])
def test_the_older_server_is_told_so(is_private):
    strategy: Any = FedIF(validation(), **BASE)
    if is_private:
        strategy = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, 2)
    server = Server(client_manager=SimpleClientManager(), strategy=strategy)
    with pytest.raises(ConfigError, match=f"FedIF was given to Flower's older API .*{SERVED}"):
        server.fit(1, None)


def test_a_numpy_client_is_told_so_in_the_log_and_in_the_error_that_ends_the_run(caplog):
    class Older(NumPyClient):
        def fit(self, parameters, config):
            return parameters, 10, {}

    app = ClientApp(client_fn=lambda context: Older().to_client())
    strategy = FedAvg(**BASE)
    with pytest.raises(TrainingFailedError, match=f"older API .*{SERVED}"):
        strategy.start(LocalGrid(app, 3), model_arrays(nn.Linear(2, 2)), num_rounds=3)
    reasons = {c.rejection for report in strategy.history.rounds for c in report.clients}
    (reason,) = reasons
    assert "NumPyClient, client_fn" in reason
    assert "docs/tutorial/own-app.md" in reason
    assert reason in caplog.text


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_the_reason_is_known_however_flower_writes_it(kind):
    """As this package's grid writes it, and as Flower's own engine does."""
    app = ClientApp(client_fn=lambda context: NumPyClient().to_client())
    message = Message(RecordDict(), 1, kind)
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(KeyError) as caught:
        app(message, context)
    for reason in (repr(caught.value), f"{type(caught.value)}:<{caught.value}>"):
        assert "NumPyClient" in reason_of(Error(code=2, reason=reason))
    assert reason_of(Error(code=2, reason="KeyError('weights')")) == "KeyError('weights')"
