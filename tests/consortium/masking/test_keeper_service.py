"""A keeper over TLS on loopback, a server that attacks it, and a server whose keeper lies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedif_consortium.evidence.chained_log import ChainedLog, open_log, read_log
from fedif_consortium.masking import keeper_service
from fedif_consortium.masking.boxes import open_box
from fedif_consortium.masking.keeper import Keeper, OpenedRound, TrialKeeper
from fedif_consortium.masking.keeper_client import HttpKeeper
from fedif_consortium.masking.keeper_service import (
    MOST_BOXES,
    keeper_app,
    keeper_key,
    keeper_server,
    make_keeper,
    read_keeper_config,
    serve,
)
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import encode_weights
from fedif_flower import storage
from fedif_flower.errors import ConfigError, EvidenceError, KeeperError, StorageError
from fedif_flower.storage import write_private
from tests.consortium.masking.parties import RUN, Keeping

UPDATES = np.random.default_rng(0).normal(size=(5, 1000)).astype(np.float32)
ROUNDS = itertools.count(1)
VECTOR = np.random.default_rng(1).normal(size=1000)


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    return Keeping(tmp_path_factory.mktemp("keeper"))


@pytest.fixture(scope="module")
def served(keeping):
    with keeping.serving() as client:
        keeping.keeper = client
        yield client


@pytest.fixture
def opened(keeping, served):
    """Give a round that is open."""
    return keeping.opened(UPDATES, server_round=next(ROUNDS))


def test_a_whole_round(keeping, served, opened):
    scores = opened.products(torch.from_numpy(VECTOR)).numpy()
    np.testing.assert_allclose(scores, UPDATES @ VECTOR, atol=1e-3)
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    np.testing.assert_allclose(opened.summed(weights), weights.numpy() @ UPDATES, atol=1e-4)
    head = served.close()
    entries = read_log(keeping.state / "log.txt")
    assert head == entries[-1]["hash"]
    assert [entry["asked"] for entry in entries[-4:]] == ["open", "products", "sum", "close"]


# -- others, and requests that are none


def test_nobody_else_is_answered_or_believed(keeping, served):
    before = time.monotonic()
    with pytest.raises(KeeperError, match="gave no answer in 1 s"):
        keeping.client("stranger", seconds=1.0).policy  # noqa: B018
    with pytest.raises(KeeperError, match="certificates is not the one that is expected"):
        keeping.client(keeper="stranger").policy  # noqa: B018
    context = ssl.create_default_context(cafile=keeping.folder / "keeper.crt")
    with httpx.Client(verify=context) as nobody, pytest.raises(httpx.TransportError):
        nobody.post(f"{served.url}/policy/0/0")
    with socket.create_connection(("127.0.0.1", int(keeping.url.split(":")[-1]))) as plain:
        plain.sendall(b"POST /policy/0/0 HTTP/1.1\r\nHost: keeper\r\n\r\n")
        plain.settimeout(30)
        with contextlib.suppress(ConnectionError):
            assert b"vectors" not in plain.recv(1000)
    assert time.monotonic() - before < 60


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/nothing", b"", 404),
        ("/nothing/1/1", b"", 409),
        ("/sum/1/1", b"", 409),
        ("/open/1/1", b'{"length": 1, "boxes": {"1": "z!"}}', 409),
        ("/open/1/1", b"[" * 100_000, 409),
        ("/open/1/1", b'{"length": 0, "boxes": {}}', 409),
        ("/products/ROUND", bytes(8001), 409),
        ("/products/ROUND", bytes(7992), 409),
        ("/sum/ROUND", np.array([2**24, 0, 0, 0, 0], "<u8").tobytes(), 409),
        ("/products/ROUND", bytes(MOST_BOXES + 8), 409),
        ("/sum/ROUND", iter([bytes(40)]), 409),  # It states no length.
    ],
)
def test_what_is_no_request_is_refused_and_the_keeper_goes_on(served, opened, path, body, status):
    url = served.url + path.replace("ROUND", "{}/{}".format(*opened.place))
    answer = served._client.post(url, content=body)
    assert answer.status_code == status
    assert answer.text
    assert served._ask("policy/0/0")


@pytest.mark.parametrize("length", [b"5", None])
def test_a_body_in_chunks_is_refused_unread_whatever_length_is_stated(length):
    """The parser takes chunks to their end, and passes over the length beside them."""
    headers = [(b"transfer-encoding", b"chunked")]
    if length is not None:
        headers.append((b"content-length", length))
    told = []

    async def receive():
        raise AssertionError("the body was read")

    async def send(message):
        told.append(message)

    scope = {"type": "http", "method": "POST", "path": "/sum/1/1", "headers": headers}
    asyncio.run(keeper_app(TrialKeeper())({**scope, "query_string": b""}, receive, send))
    assert told[0]["status"] == 409
    assert b"a request states its length" in told[1]["body"]


def test_a_full_disk_is_said_in_a_sentence_and_ends_no_round():
    disk = {"full": True}

    def write(_line):
        if disk["full"]:
            raise StorageError("/srv/log.txt: no space left")

    keeper = TrialKeeper()
    keeper.log = ChainedLog(write=write)
    for status, words in ((503, b"the keeper cannot write its log"), (409, b"least-members")):
        told = answer_to(keeper, "/open/1/1", b'{"length": 1, "boxes": {}}')
        assert told[0]["status"] == status
        assert words in told[1]["body"]
        assert b"/srv" not in told[1]["body"]
        disk["full"] = False


def test_what_the_keeper_itself_could_not_do_is_in_its_log(monkeypatch, caplog):
    def fail(*_, **__):
        raise reason

    monkeypatch.setattr(keeper_service, "answer_request", fail)
    for reason, is_logged in ((KeeperError("refused"), False), (EvidenceError("damaged"), True)):
        told = answer_to(TrialKeeper(), "/open/1/1", b"")
        assert told[0]["status"] == 409
        assert (str(reason) in caplog.text) == is_logged


def answer_to(keeper: Keeper, path: str, body: bytes) -> list[dict[str, Any]]:
    """Return the messages in which a keeper's application answers."""
    told = []

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        told.append(message)

    headers = [(b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
    asyncio.run(keeper_app(keeper)({**scope, "headers": headers}, receive, send))
    return told


# -- what it keeps


def test_only_the_owner_can_read_what_is_kept_and_seeds_are_not_written(keeping, opened):
    for file in ("log.txt", "box-key"):
        assert (keeping.state / file).stat().st_mode & 0o777 == 0o600
    written = b"".join(file.read_bytes() for file in keeping.state.iterdir())
    for one, own in zip(keeping.masked.values(), keeping.keys, strict=True):
        seed = open_box(one.box, own.public_key(), keeping.key)
        assert seed not in written
        assert seed.hex().encode() not in written


def test_a_keeper_that_dies_in_mid_round_fails_it_and_the_next_one_works(tmp_path):
    keeping = Keeping(tmp_path)
    first = keeping.mask_all(UPDATES)
    with keeping.serving() as keeping.keeper:
        keeping.open(first)
    with keeping.serving() as keeping.keeper:
        with pytest.raises(KeeperError, match=r"round 1 of run .* is not open"):
            keeping.keeper.weighted_sum(RUN, 1, encode_weights(np.ones(5))[0])
        # Opened again, the same masks would be summed twice.
        with pytest.raises(KeeperError, match="a round is opened once"):
            keeping.open(first)
        assert len(keeping.open(keeping.mask_all(UPDATES, 2), 2).nodes) == 5


@pytest.mark.parametrize("left", ["box-key.pub", "log.txt"])
def test_a_key_that_was_lost_is_not_made_anew_beside_what_is_left(tmp_path, left):
    keeper_key(tmp_path)
    for name in ("box-key", "box-key.pub"):
        (tmp_path / name).unlink()
    (tmp_path / left).touch()
    with pytest.raises(
        ConfigError,
        match=re.escape(f"{tmp_path} has {left}, but no box-key: restore box-key alone"),
    ):
        keeper_key(tmp_path)
    assert not (tmp_path / "box-key").exists()


def test_a_key_that_another_process_makes_at_the_same_moment_is_taken(tmp_path, monkeypatch):
    other_key = X25519PrivateKey.generate().private_bytes_raw()

    def make_after_another(path: Path, content: bytes) -> None:
        write_private(path, other_key.hex().encode())
        write_private(path, content)

    monkeypatch.setattr(storage, "write_private", make_after_another)
    assert keeper_key(tmp_path).private_bytes_raw() == other_key


@pytest.mark.parametrize("entry", [{"received": 1}, {"asked": "products", "answer": ""}])
def test_another_writers_log_is_named(tmp_path, entry):
    config = read_keeper_config(Keeping(tmp_path).write())
    file = tmp_path / "keeper-state" / "log.txt"
    open_log(file).append(entry | {"members": ["member-0"]})
    with pytest.raises(EvidenceError, match=re.escape(f"{file} is no keeper's log")):
        make_keeper(config)


def test_a_service_whose_files_others_may_read_or_that_are_not_there_does_not_begin(tmp_path):
    config = read_keeper_config(Keeping(tmp_path).write())
    app = keeper_app(TrialKeeper())
    (tmp_path / "keeper.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"certificate-key.*keeper\.key"):
        keeper_server(app, config.settings)
    (tmp_path / "keeper.key").chmod(0o600)
    (tmp_path / "keeper-client.crt").unlink()
    missing = tmp_path / "keeper-client.crt"
    with pytest.raises(ConfigError, match=re.escape(f"{missing} cannot be read")):
        keeper_server(app, config.settings)


def test_a_service_that_does_not_begin_does_not_say_that_it_listens(tmp_path, caplog):
    config = read_keeper_config(Keeping(tmp_path).write())
    config = config._replace(settings=config.settings.replace(health_address="nowhere"))
    caplog.set_level("INFO")
    with pytest.raises(ConfigError, match="health-address = 'nowhere'"):
        serve(config)
    assert "listens" not in caplog.text


# -- its file


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("address", "adress", "unknown key 'adress'; did you mean address?"),
        (
            "address",
            "x",
            "unknown key 'x'; known keys: address, state, certificate, certificate-key",
        ),
        ("sketch-share = 0.0625", "least_members = 6", "least-members = 6; allowed: at most the 5"),
        ("127.0.0.1:0", "127.0.0.1", "address = '127.0.0.1'; allowed: HOST:PORT"),
        ("share = 0.0625", "share = 2.0", "sketch-share = 2.0; allowed: a numb"),
        ("sketch-share = 0.0625", "least-members = 6", "least-members = 6; allowed: at most the 5"),
        ("member-1.pub", "nobody.pub", "No such file"),
        ("member-1.pub", "keeper.crt", "[members] member-1 = 'keeper.crt' is no public key"),
        ("member-1.pub", "member-0.pub", "[members] member-1 and member-0 have the same key"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path, old, new, reason):
    file = Keeping(tmp_path).write()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: .*{re.escape(reason)}"):
        read_keeper_config(file)


def test_a_file_without_settings_has_its_paths_beside_it(tmp_path):
    file = Keeping(tmp_path).write()
    file.write_text(re.sub(r"address.*|\[policy\]|sketch.*", "", file.read_text()))
    settings, members, policy = read_keeper_config(file)
    assert settings.certificate == str(tmp_path / "keeper.crt")
    assert (len(members), policy) == (5, KeeperPolicy())


# -- a keeper that is slow, lies about sizes, or talks nonsense


def of_nodes(*nodes, sums=62, seed=bytes(32)) -> bytes:
    told = {"nodes": nodes, "refused": {}, "seed": seed, "packed": bytes(8 * len(nodes) * sums)}
    return OpenedRound.model_construct(**told).model_dump_json().encode()


NODES = (100, 101, 102, 103, 104)
WELL = {
    "policy": KeeperPolicy().model_dump_json(by_alias=True).encode(),
    "open": of_nodes(*NODES),
    "products": bytes(40),
    "sum": bytes(8000),
}


def ask_all(status=200, **answers) -> None:
    """Ask a keeper everything that answers so, by what it is asked."""

    def answer(request):
        if isinstance(found := (WELL | answers)[request.url.path.split("/")[1]], Exception):
            raise found
        return httpx.Response(status, content=iter([found] if isinstance(found, bytes) else found))

    client = HttpKeeper("https://keeper", ssl.create_default_context(), 1.0)
    client._client = httpx.Client(transport=httpx.MockTransport(answer))
    client.open_round(RUN, 1, 1000, dict.fromkeys(NODES, b"box"))
    client.products(RUN, 1, np.zeros(1000, np.uint64))
    client.weighted_sum(RUN, 1, np.zeros(5, np.uint64))


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"policy": (time.sleep(0.2) or b" " for _ in range(90))}, "too slow"),
        ({"policy": (bytes(2**20) for _ in range(20))}, "longer than 1048576 bytes"),
        ({"policy": httpx.RemoteProtocolError("no HTTP")}, "gave no answer in 1 s"),
        ({"policy": httpx.ConnectError("nobody")}, "gave no answer in 1 s"),
        ({"policy": b"{,"}, "not readable"),
        ({"policy": b'{"vectors": -1}'}, "vectors = -1"),
        ({"status": 500, "policy": b"\x1b[2J" * 2**17}, r"status 500: \?\[2J.{593}\.\.\.$"),
        ({"open": of_nodes(100, 101)}, "not about the boxes"),
        ({"open": of_nodes(*[100] * 5)}, "not about the boxes"),
        ({"open": of_nodes(*NODES, sums=61)}, "have 61 sums, not 62"),
        ({"open": of_nodes(*NODES, seed=bytes(31))}, "not readable"),
        ({"products": bytes(32)}, "has 32 bytes"),
        ({"sum": bytes(2**21)}, "longer than"),
        ({"sum": bytes(7992)}, "has 7992 bytes"),
    ],
)
def test_a_keeper_that_answers_badly_is_not_believed_and_costs_a_bounded_time(answers, reason):
    ask_all()
    before = time.monotonic()
    with pytest.raises(KeeperError, match=reason):
        ask_all(**answers)
    assert time.monotonic() - before < 30


def test_a_keeper_that_says_nothing_costs_a_bounded_time(keeping):
    before = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = keeping.client(seconds=1.0)
        client.url = f"https://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(KeeperError, match="gave no answer in 1 s"):
            client.policy  # noqa: B018
    assert time.monotonic() - before < 30
