from __future__ import annotations

import logging

import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedif_flower.run.logs import LOGGER
from fedif_flower.runtime import client_log
from fedif_flower.runtime.client_log import RECORD, ClientLog, LoggedApp
from fedif_flower.runtime.local_grid import LocalGrid


@pytest.fixture
def collector(monkeypatch):
    """An actor's collector, fresh, and gone afterwards."""
    fresh = client_log._Collector()
    monkeypatch.setattr(client_log, "_collector", fresh)
    yield fresh
    logging.getLogger(LOGGER).removeHandler(fresh)


def make_app() -> ClientApp:
    """An app that warns in training and fails in a query; in here, for Ray to carry it by value."""
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        logger = logging.getLogger("fedif_flower.tasks.data.cache")
        logger.info("preparing digits")
        logger.warning("%s is damaged", "cifar10")
        return Message(RecordDict(), reply_to=message)

    @app.query()
    def _(message: Message, context: Context) -> Message:
        logging.getLogger("fedif_flower.client").warning("no memory")
        raise RuntimeError("gone")

    return app


def ask(app: ClientApp, kind: str = MessageType.TRAIN) -> Context:
    """Send a message to a node of the app and return what the node keeps."""
    grid = LocalGrid(app, 1)
    list(grid.send_and_receive([Message(RecordDict(), 1000, kind)]))
    return grid.contexts[1000]


def test_a_warning_leaves_in_the_state_once_and_is_logged_once(collector, caplog):
    app = LoggedApp(make_app())
    first, second = ask(app), ask(app)
    assert RECORD not in second.state
    another = ask_of_a_new_actor(app)
    caplog.clear()
    log = ClientLog()
    for context in (first, second, another):
        log.log(context)
        assert not context.state
    [record] = caplog.records
    assert (record.name, record.levelno) == ("fedif_flower.tasks.data.cache", logging.WARNING)
    assert record.getMessage() == "in a client: cifar10 is damaged"


def ask_of_a_new_actor(app: ClientApp) -> Context:
    client_log._collector._seen.clear()
    return ask(app)


def test_what_a_failed_call_warned_of_comes_with_the_next_reply(collector):
    app = LoggedApp(make_app())
    assert not ask(app, MessageType.QUERY).state
    assert "no memory" in str(ask(app).state[RECORD]["log"])
