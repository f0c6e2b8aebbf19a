"""What a server makes of a keeper that is slow, lies about sizes, or talks nonsense."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

import numpy as np
import pytest

from fedif_consortium.masking.keeper import OpenedRound
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_flower.errors import KeeperError
from tests.runtime.keeping import RUN, Keeping

UPDATES = np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    return Keeping(tmp_path_factory.mktemp("keeper"), members=4)


@contextlib.contextmanager
def answering(keeping, pieces, pause=0.0):
    """Be a keeper that sends these bytes to whoever asks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keeping.folder / "keeper.crt", keeping.folder / "keeper.key")
    over = threading.Event()

    def answer(listening):
        while not over.is_set():
            with contextlib.suppress(OSError), context.wrap_socket(
                listening.accept()[0], server_side=True
            ) as connection:  # fmt: skip
                connection.recv(100_000)
                for piece in pieces:
                    connection.sendall(piece)
                    if over.wait(pause):
                        return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,), daemon=True)
        thread.start()
        keeping.port = listening.getsockname()[1]
        yield
        over.set()
        keeping.port = 0  # Whoever serves next has a port of its own.


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("pieces", "pause", "reason"),
    [
        pytest.param([b""], 60.0, r"gave no answer in 1 s", id="says nothing"),
        pytest.param([HEAD + b"content-length: 90\r\n\r\n"] + [b" "] * 90, 0.2, "slow", id="drips"),
        pytest.param([b"nonsense"] * 9, 0.0, "gave no answer in 1 s", id="no HTTP"),
        pytest.param([HEAD + b"content-length: 2\r\n\r\n{,"], 60.0, "not readable", id="no JSON"),
        pytest.param(
            [HEAD + b'content-length: 15\r\n\r\n{"vectors": -1}'], 60.0, "vectors = -1", id="policy"
        ),
        pytest.param(
            [b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}"], 60.0, "status 500", id="no reason"
        ),
        pytest.param(
            [HEAD + b"transfer-encoding: chunked\r\n\r\n"]
            + [b"100000\r\n" + bytes(2**20) + b"\r\n"] * 20,
            0.0, "longer than 1048576 bytes", id="no end",
        ),
    ],
)  # fmt: skip
def test_a_keeper_that_answers_badly_costs_a_bounded_time(keeping, pieces, pause, reason):
    with answering(keeping, pieces, pause):
        before = time.monotonic()
        with pytest.raises(KeeperError, match=reason):
            keeping.client(seconds=1.0).policy()
        assert time.monotonic() - before < 30


def opened(nodes=(100, 101, 102, 103), sums=100, seed=bytes(32)):
    packed = bytes(8 * len(nodes) * sums)
    return OpenedRound.model_construct(nodes=nodes, refused={}, seed=seed, packed=packed)


class Lying:
    """Answers what it was made with."""

    length = 100

    def __init__(self, **answers):
        self._answers = {"open": opened(), **answers}

    def policy(self):
        return KeeperPolicy(sketch_share=1.0)

    def open_round(self, *_):
        return self._answers["open"]

    def products(self, *_):
        return self._answers["products"]

    def weighted_sum(self, *_):
        return self._answers["sum"]


ROWS = np.zeros((4, 100), np.uint64)


@pytest.mark.parametrize(
    ("answers", "ask", "reason"),
    [
        ({"open": opened((100, 101))}, None, "not about the boxes"),
        ({"open": opened((100,) * 4)}, None, "not about the boxes"),
        ({"open": opened(sums=99)}, None, "have 99 sums, not 100"),
        ({"open": opened(seed=bytes(31))}, None, "not readable"),
        ({"products": ROWS[:, :2]}, lambda k: k.products(RUN, 1, ROWS[:1]), "has 64 bytes"),
        ({"sum": np.zeros(2**18, np.uint64)}, lambda k: k.weighted_sum(RUN, 1, ROWS[:, 0]), "long"),
        ({"sum": ROWS[0, 1:]}, lambda k: k.weighted_sum(RUN, 1, ROWS[:, 0]), "has 792 bytes"),
    ],
)
def test_answers_of_another_size_are_not_taken(keeping, answers, ask, reason):
    with keeping.serving(Lying(**answers)) as client:
        asked = {100 + i: b"box" for i in range(4)}
        if ask is not None:
            client.open_round(RUN, 1, 100, asked)
        with pytest.raises(KeeperError, match=reason):
            ask(client) if ask else client.open_round(RUN, 1, 100, asked)
